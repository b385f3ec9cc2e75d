import { createServer, type Server } from 'node:http'
import type { AddressInfo } from 'node:net'
import { mkdtemp, readdir, readFile, readlink, rm, stat } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { gzipSync } from 'node:zlib'
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { ZipEntry } from '../../../lib/archive/zip-reader.ts'
import { fetchStandalonePython, extractTree } from './standalone-python.ts'

let scratch: string
let server: Server
let answer: { status: number; body: Buffer }
beforeEach(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-standalone-'))
  server = createServer((_request, response) => response.writeHead(answer.status).end(answer.body))
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
})
afterEach(async () => {
  server.close()
  await rm(scratch, { recursive: true, force: true })
})

function fetch(platform = 'linux-x64'): Promise<unknown> {
  const env = { GOPROXY: `http://127.0.0.1:${(server.address() as AddressInfo).port},direct` }
  return fetchStandalonePython({ platform, tmpdir: scratch, env, signal: AbortSignal.timeout(5000) })
}

/** A valid archive with a wrong checksum. */
const EMPTY_ARCHIVE = Buffer.concat([Buffer.from('PK\u0005\u0006'), Buffer.alloc(18)])

test.each([
  [
    { status: 404, body: Buffer.from('none') },
    /could not be downloaded from http:\/\/127\.0\.0\.1:\d+\/github.*answered 404/,
  ],
  [{ status: 200, body: Buffer.from('a page of a login, not an archive') }, /Not a ZIP archive/],
  [{ status: 200, body: EMPTY_ARCHIVE }, /the checksum of .* is h1:/],
])('fetchStandalonePython() rejects a wrong download and removes its files', async (given, message) => {
  answer = given
  await expect(fetch()).rejects.toThrow(message)
  expect(await readdir(scratch)).toEqual([])
})

test('fetchStandalonePython() rejects an unsupported platform', async () => {
  await expect(fetch('win32-x64')).rejects.toThrow('no standalone Python exists for win32-x64')
})

function entriesOf(files: Record<string, Buffer | string>): ZipEntry[] {
  const root = 'github.com/kluctl/go-embed-python@v0.0.0-3.14.6-20260610-1/data/'
  return Object.entries(files).map(([name, content]) => {
    const data = Buffer.from(content)
    return { name: `${root}${name}`, size: data.length, read: () => data }
  })
}

const list = (...files: object[]): string => JSON.stringify({ files })

test('extractTree() extracts files with their modes and links, and decompresses programs', async () => {
  const files = list(
    { name: 'bin', perm: 0o20000000755 },
    { name: 'bin/python3', perm: 0o1000000000, symlink: 'python3.14' },
    { name: 'bin/python3.14', perm: 0o755 },
    { name: 'lib/os.py', perm: 0o644 },
  )
  const entries = entriesOf({ 'files.json': files, 'bin/python3.14.gz': gzipSync('program'), 'lib/os.py': 'code' })
  await extractTree(entries, 'data/', join(scratch, 'tree'))
  expect(await readlink(join(scratch, 'tree/bin/python3'))).toBe('python3.14')
  expect(await readFile(join(scratch, 'tree/bin/python3'), 'utf8')).toBe('program')
  expect((await stat(join(scratch, 'tree/bin/python3.14'))).mode & 0o777).toBe(0o755)
  expect(await readFile(join(scratch, 'tree/lib/os.py'), 'utf8')).toBe('code')
})

test.each(['../out', 'a/../../out'])('extractTree() rejects the path %s', async (name) => {
  const entries = entriesOf({ 'files.json': list({ name, perm: 0o644 }), [name]: 'x' })
  await expect(extractTree(entries, 'data/', join(scratch, 'tree'))).rejects.toThrow('is outside of the target folder')
})
