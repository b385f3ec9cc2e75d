import { chmod, mkdir, mkdtemp, readFile, rm, stat, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { bundleStart, checkBundle, loadBundle, sealBundle, type Bundle } from './harness-bundle.ts'

const harness = { name: 'toy', package: { registry: 'npm', name: '@toys/toy', version: '1.2.3' } } as const

let folder: string
beforeEach(async () => {
  folder = await mkdtemp(join(tmpdir(), 'polar-bundle-'))
  await write('node_modules/toy/cli.js', 'console.log("1.2.3")\n')
  await write('node_modules/toy/run.sh', '#!/bin/sh\n', 0o750)
  await write('node_modules/toy/private.json', '{}', 0o600)
  await symlink('../toy/cli.js', join(folder, 'node_modules/link'))
})
afterEach(() => rm(folder, { recursive: true, force: true }))

async function write(path: string, text: string, mode = 0o644): Promise<void> {
  await mkdir(dirname(join(folder, path)), { recursive: true, mode: 0o700 })
  await writeFile(join(folder, path), text)
  await chmod(join(folder, path), mode)
}

function seal(): Promise<Bundle> {
  return sealBundle(folder, harness, {
    platform: 'linux-x64',
    program: { kind: 'node', path: 'node_modules/toy/cli.js' },
    interpreter: { path: 'node/bin/node', version: '24.0.0' },
    createdBy: 'polar-rl 0.0.0',
  })
}

describe('a bundle', () => {
  beforeEach(() => write('node/bin/node', 'no ELF', 0o755))

  test('describes itself, and every user can read its files', async () => {
    const bundle = await seal()
    expect(bundle).toMatchObject({
      schemaVersion: 1,
      name: 'toy',
      version: '1.2.3',
      requires: { libc: null, glibc: null, libraries: [] },
      files: 5,
      bytes: 21 + 10 + 2 + 6 + '../toy/cli.js'.length,
    })
    expect(await loadBundle(folder)).toEqual(bundle)
    const modes = await Promise.all(
      ['.', 'node_modules/toy', 'node_modules/toy/run.sh', 'node_modules/toy/private.json'].map(modeOf),
    )
    expect(modes).toEqual(['755', '755', '755', '644'])
    expect(await checkBundle(folder, bundle)).toEqual([])
  })

  test('has the same sum as a bundle with equal files, and a different sum if one file differs', async () => {
    const { sha256 } = await seal()
    expect((await seal()).sha256).toBe(sha256)
    await chmod(join(folder, 'node_modules/toy/cli.js'), 0o755)
    expect((await seal()).sha256).not.toBe(sha256)
  })

  test.each<[string, () => Promise<unknown>, string]>([
    [
      'changed',
      () => write('node_modules/toy/cli.js', 'console.log("1.2.4")\n'),
      'node_modules/toy/cli.js was changed',
    ],
    ['gone', () => rm(join(folder, 'node_modules/toy/run.sh')), 'node_modules/toy/run.sh is missing'],
    ['new', () => write('node_modules/toy/new.js', ''), 'node_modules/toy/new.js does not belong there'],
    [
      'executable',
      () => chmod(join(folder, 'node_modules/toy/cli.js'), 0o755),
      'node_modules/toy/cli.js has mode 755, not 644',
    ],
    [
      'redirected',
      async () => {
        await rm(join(folder, 'node_modules/link'))
        await symlink('/etc/passwd', join(folder, 'node_modules/link'))
      },
      'node_modules/link was changed',
    ],
    ['covered up', () => write('bundle.sums', ''), 'bundle.sums was changed'],
    ['without sums', () => rm(join(folder, 'bundle.sums')), 'bundle.sums is missing'],
  ])('reports a file that is %s', async (_case, tamper, problem) => {
    const bundle = await seal()
    await tamper()
    expect(await checkBundle(folder, bundle)).toEqual([problem])
  })

  test.each([
    ['no JSON', '{'],
    ['made by a newer version', JSON.stringify({ schemaVersion: 2 })],
  ])('that is %s counts as damaged, not as absent', async (_case, text) => {
    await write('bundle.json', text)
    await expect(loadBundle(folder)).rejects.toMatchObject({ code: 'harness.damaged' })
  })

  test('cannot contain a program path outside of its folder', async () => {
    await seal()
    const text = await readFile(join(folder, 'bundle.json'), 'utf8')
    await write('bundle.json', text.replace('node_modules/toy/cli.js', '../../bin/sh'))
    await expect(loadBundle(folder)).rejects.toThrow('must be a path inside the bundle')
  })
})

test('bundleStart() returns the command relative to the mount path', () => {
  const node = {
    program: { kind: 'node', path: 'cli.js' },
    interpreter: { path: 'node/bin/node', version: '24.0.0' },
  } as const
  expect(bundleStart(node, '/opt/toy')).toEqual({ command: ['/opt/toy/node/bin/node', '/opt/toy/cli.js'], env: {} })
  const native = { program: { kind: 'native', path: 'bin/toy' }, interpreter: null } as const
  expect(bundleStart(native, '/mnt/x')).toEqual({ command: ['/mnt/x/bin/toy'], env: {} })
  const python = { program: { kind: 'python', path: 'python/bin/python3' }, interpreter: null } as const
  expect(bundleStart(python, '/opt/toy')).toEqual({
    command: ['/opt/toy/python/bin/python3', '-I', '-B'],
    env: { LD_LIBRARY_PATH: '/opt/toy/python/lib' },
  })
})

async function modeOf(path: string): Promise<string> {
  return ((await stat(join(folder, path))).mode & 0o777).toString(8)
}
