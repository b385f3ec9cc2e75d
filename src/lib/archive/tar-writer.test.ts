import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { chmod, mkdir, mkdtemp, readFile, readlink, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { createServer, type Server } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { readTar } from './tar-reader.ts'
import { packTree, TAR_END, tarHeader } from './tar-writer.ts'

let dir: string
let server: Server
const long = `${'länge'.repeat(40)}.txt`

beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-tar-'))
  await mkdir(join(dir, 'tree', 'empty'), { recursive: true })
  await writeFile(join(dir, 'tree', 'run.sh'), 'echo hello')
  await chmod(join(dir, 'tree', 'run.sh'), 0o751)
  await writeFile(join(dir, 'tree', long), 'x'.repeat(513))
  await symlink(`/${'away/'.repeat(40)}`, join(dir, 'tree', 'link'))
  server = createServer().listen(join(dir, 'tree', 'socket'))
  await once(server, 'listening')
})
afterAll(async () => {
  server.close()
  await rm(dir, { recursive: true })
})

test("packTree() writes archives that the system's tar reads", async () => {
  const target = join(dir, 'out')
  await mkdir(target)
  const chunks = await Array.fromAsync(packTree(join(dir, 'tree'), 'copy', { uid: 1000, gid: 1000 }))
  const archive = Buffer.concat([...chunks, TAR_END])
  execFileSync('tar', ['-xpf', '-', '--no-same-owner', '-C', target], { input: archive })
  expect(await readFile(join(target, 'copy', 'run.sh'), 'utf8')).toBe('echo hello')
  expect((await stat(join(target, 'copy', 'run.sh'))).mode & 0o777).toBe(0o751)
  expect((await stat(join(target, 'copy', 'empty'))).isDirectory()).toBe(true)
  expect(await readFile(join(target, 'copy', long), 'utf8')).toBe('x'.repeat(513))
  expect(await readlink(join(target, 'copy', 'link'))).toBe(`/${'away/'.repeat(40)}`)
  const listed = execFileSync('tar', ['-tvf', '-', '--numeric-owner'], { input: archive, encoding: 'utf8' })
  expect(listed).toMatch(/^drwx\S+ 1000\/1000/)
  expect(listed).not.toContain('socket')
})

test('tarHeader() writes sizes that exceed the size field', async () => {
  const size = 8 ** 11
  const header = tarHeader({ name: 'huge', kind: 'file', mode: 0o644, uid: 0, gid: 0, size })
  const { value } = await readTar(Readable.from([header])).next()
  expect(value).toMatchObject({ entry: { name: 'huge', size } })
})
