import { chmod, mkdtemp, readdir, readFile, readlink, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { RolloutError } from '../../../../model/failure.ts'
import { extractTar } from './extract-tar.ts'

const LIMITS = { maxBytes: 1000, maxFiles: 10 }
let dir: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-extract-'))
  await writeFile(join(dir, 'outside'), 'untouched')
})
afterEach(async () => {
  expect(await readFile(join(dir, 'outside'), 'utf8')).toBe('untouched')
  expect((await readdir(dir)).filter((name) => name !== 'target')).toEqual(['outside'])
  await rm(dir, { recursive: true })
})

interface Member {
  name: string
  type: '0' | '1' | '2' | '3' | '5' | '6'
  target?: string
  content?: string
  size?: number
  mode?: number
}

/** Builds an archive that no tar would produce. */
function archive(...members: Member[]): Buffer {
  const blocks = members.flatMap(({ name, type, target = '', content = '', size = content.length, mode = 0o644 }) => {
    const header = Buffer.alloc(512)
    header.write(name, 0)
    header.write(mode.toString(8).padStart(7, '0'), 100)
    header.write(size.toString(8).padStart(11, '0'), 124)
    header.write('        ', 148)
    header.write(type, 156)
    header.write(target, 157)
    const sum = header.reduce((total, byte) => total + byte, 0)
    header.write(`${sum.toString(8).padStart(6, '0')}\0 `, 148)
    const body = Buffer.alloc(Math.ceil(content.length / 512) * 512)
    body.write(content)
    return [header, body]
  })
  return Buffer.concat([...blocks, Buffer.alloc(1024)])
}

async function* once(bytes: Buffer): AsyncGenerator<Buffer> {
  yield bytes
}

async function codeOf(...members: Member[]): Promise<string> {
  const error = await extractTar(once(archive(...members)), join(dir, 'target'), LIMITS).then(
    () => undefined,
    (reason: unknown) => reason,
  )
  await rm(join(dir, 'target'), { recursive: true, force: true })
  return error instanceof RolloutError ? error.code : String(error)
}

const root: Member = { name: 'x/', type: '5', mode: 0o755 }

test('extractTar() writes files, directories, and links as links', async () => {
  const target = join(dir, 'target')
  await extractTar(
    once(
      archive(
        { ...root, mode: 0o555 },
        { name: 'x/a', type: '0', content: 'one', mode: 0o4755 },
        { name: 'x/b', type: '1', target: 'x/a' },
        { name: 'x/c', type: '2', target: '/etc/passwd' },
      ),
    ),
    target,
    LIMITS,
  )
  expect(await readFile(join(target, 'b'), 'utf8')).toBe('one')
  expect(await readlink(join(target, 'c'))).toBe('/etc/passwd')
  expect((await stat(join(target, 'a'))).mode & 0o7777).toBe(0o755)
  expect((await stat(target)).mode & 0o777).toBe(0o555)
  // An ordinary user can remove files only from folders that allow it.
  await chmod(target, 0o755)
})

test.each<[string, Member[]]>([
  ['a name that goes up', [root, { name: 'x/../../outside', type: '0', content: 'bad' }]],
  ['an absolute name', [root, { name: '/tmp/polar-bad', type: '0', content: 'bad' }]],
  [
    'a file below a link',
    [root, { name: 'x/l', type: '2', target: '..' }, { name: 'x/l/outside', type: '0', content: 'bad' }],
  ],
  [
    'a file over a link',
    [root, { name: 'x/l', type: '2', target: '../outside' }, { name: 'x/l', type: '0', content: 'bad' }],
  ],
  ['a directory over a link', [root, { name: 'x/l', type: '2', target: '..' }, { name: 'x/l/', type: '5' }]],
  [
    'a hard link to a link',
    [root, { name: 'x/l', type: '2', target: '../outside' }, { name: 'x/h', type: '1', target: 'x/l' }],
  ],
  ['a hard link that goes up', [root, { name: 'x/h', type: '1', target: 'x/../outside' }]],
  ['a hard link to a file of the machine', [root, { name: 'x/h', type: '1', target: '/etc/passwd' }]],
  [
    'a second root',
    [
      { name: 'x', type: '2', target: 'outside' },
      { name: 'y', type: '0', content: 'bad' },
    ],
  ],
  ['a file in a directory nobody made', [root, { name: 'x/none/f', type: '0' }]],
  ['a device', [root, { name: 'x/d', type: '3' }]],
  ['a pipe', [root, { name: 'x/p', type: '6' }]],
])('extractTar() rejects %s', async (_, members) => {
  expect(await codeOf(...members)).toBe('workspace.unsafe-file')
})

test('extractTar() rejects too many bytes before reading them, and too many files', async () => {
  expect(await codeOf(root, { name: 'x/big', type: '0', size: 2 ** 33 - 1 })).toBe('workspace.too-large')
  const many = Array.from({ length: 11 }, (_, index): Member => ({ name: `x/${index}`, type: '0' }))
  expect(await codeOf(root, ...many)).toBe('workspace.too-large')
})
