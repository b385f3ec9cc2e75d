import { chmod, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import * as z from 'zod'
import { checkHarness } from '../check-harness.ts'
import { findHarness, type HarnessFolders } from '../find-harness.ts'
import { defineHarness } from '../presets/harness.ts'
import { installHarness } from './install-harness.ts'

const harness = defineHarness({
  name: 'toy',
  title: 'Toy',
  package: { registry: 'npm', name: '@toys/toy', version: '1.2.3' },
  command: 'toy',
  program: (platform) => ({ kind: 'native', paths: [`node_modules/toy-${platform}/toy`] }),
  dialect: 'openai-chat',
  hasSubAgents: false,
  instruction: 'stdin',
  mcpTransports: [],
  settings: z.strictObject({}),
  configure: () => ({ files: {}, env: {}, args: [] }),
  exitCodes: {},
})

const script: typeof harness = {
  ...harness,
  program: () => ({ kind: 'node', paths: ['node_modules/toy/cli.js'] }),
  minimumNode: '20.0.0',
}

let scratch: string
let folders: HarnessFolders
beforeEach(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-install-'))
  const bin = join(scratch, 'bin')
  folders = {
    dir: join(scratch, 'harnesses'),
    path: `${bin}:/usr/bin:/bin`,
    platform: 'linux-x64',
    node: { path: process.execPath, version: process.versions.node },
    tmpdir: scratch,
  }
  await mkdir(bin)
})
afterEach(() => rm(scratch, { recursive: true, force: true }))

async function writeProgram(path: string, text: string): Promise<void> {
  await mkdir(dirname(path), { recursive: true })
  await writeFile(path, text)
  await chmod(path, 0o755)
}

/** A fake npm that records its arguments and then runs `effect`. */
async function fakeNpm(effect: string): Promise<void> {
  await writeProgram(join(scratch, 'bin/npm'), `#!/bin/sh\necho "$@" >> ${scratch}/npm.log\n${effect}\n`)
}

const installToy = (version: string) => `
mkdir -p node_modules/toy-linux-x64
printf '#!/bin/sh\\necho "toy ${version} (a toy)"\\n' > node_modules/toy-linux-x64/toy
chmod +x node_modules/toy-linux-x64/toy`

const installScript = `
mkdir -p node_modules/toy
echo 'console.log("1.2.3")' > node_modules/toy/cli.js`

function install(wanted = harness): ReturnType<typeof installHarness> {
  const { signal } = new AbortController()
  return installHarness(wanted, { folders, env: { PATH: folders.path }, createdBy: 'polar-rl 0.0.0', signal })
}

describe('installHarness()', () => {
  test('runs npm for the exact version without scripts, and creates a bundle that findHarness() finds', async () => {
    await fakeNpm(installToy('1.2.3'))
    const { folder, bundle, outcome } = await install()
    const program = join(folder, 'node_modules/toy-linux-x64/toy')
    expect({ folder, outcome }).toEqual({ folder: join(folders.dir, 'toy-1.2.3'), outcome: 'installed' })
    expect(bundle).toMatchObject({ name: 'toy', version: '1.2.3', interpreter: null, createdBy: 'polar-rl 0.0.0' })
    expect(bundle.bytes).toBeGreaterThan(30)
    const call = await readFile(join(scratch, 'npm.log'), 'utf8')
    expect(call).toMatch(
      /^install --prefix \S+ --ignore-scripts --no-audit --no-fund --omit=dev .*@toys\/toy@1\.2\.3\n$/,
    )
    expect(await findHarness(harness, folders)).toEqual({ path: program, command: [program], env: {}, bundle, folder })
    expect(await readdir(folders.dir)).toEqual(['toy-1.2.3'])
    expect(await checkHarness(harness, folders)).toEqual([])
  })

  test('adds Node to the bundle of a script, as a link that all bundles share', async () => {
    await fakeNpm(installScript)
    const other = { ...script, name: 'toy_two' }
    const [one, two] = [await install(script), await install(other)]
    expect(one.bundle.interpreter).toEqual({ path: 'node/bin/node', version: process.versions.node })
    const nodes = await Promise.all([one, two].map(({ folder }) => stat(join(folder, 'node/bin/node'))))
    expect(nodes[0]?.ino).toBe(nodes[1]?.ino)
    expect((await findHarness(script, folders))?.command).toEqual([
      join(one.folder, 'node/bin/node'),
      join(one.folder, 'node_modules/toy/cli.js'),
    ])
  })

  test('does nothing if the bundle is intact', async () => {
    await fakeNpm(installToy('1.2.3'))
    await install()
    expect(await install()).toMatchObject({ outcome: 'kept' })
    expect(await npmCalls()).toBe(1)
  })

  test('makes an installed package without a bundle file a bundle', async () => {
    await fakeNpm(installToy('1.2.3'))
    const { folder } = await install()
    for (const file of ['bundle.json', 'bundle.sums']) await rm(join(folder, file))
    expect(await checkHarness(harness, folders)).toBeUndefined()
    expect((await findHarness(harness, folders))?.path).toContain(folder)
    expect(await install()).toMatchObject({ outcome: 'upgraded' })
    expect(await checkHarness(harness, folders)).toEqual([])
    expect(await npmCalls()).toBe(1)
  })

  test.each(['bundle.json', 'node_modules/toy-linux-x64/toy'])(
    'replaces a bundle whose %s was changed',
    async (file) => {
      await fakeNpm(installToy('1.2.3'))
      const { folder } = await install()
      await writeFile(join(folder, file), '#!/bin/sh\necho 1.2.3\n')
      expect(await checkHarness(harness, folders)).toEqual([expect.stringContaining(file)])
      expect(await install()).toMatchObject({ outcome: 'replaced' })
      expect(await checkHarness(harness, folders)).toEqual([])
      expect(await readdir(folders.dir)).toEqual(['toy-1.2.3'])
    },
  )

  test('may run twice at the same time', async () => {
    await fakeNpm(`sleep 0.1${installToy('1.2.3')}`)
    await Promise.all([install(), install()])
    expect(await readdir(folders.dir)).toEqual(['toy-1.2.3'])
  })

  test.each([
    ['npm fails', 'echo "no such package" >&2; exit 7', /npm ended with 7:\nno such package/],
    ['the package has no program for this machine', 'true', /no program for linux-x64/],
    ['it is another version', installToy('1.2.4'), /reports the version 1\.2\.4, not 1\.2\.3/],
  ])('removes its files when %s', async (_case, effect, message) => {
    await fakeNpm(effect)
    await expect(install()).rejects.toMatchObject({ code: 'harness.install-failed' })
    await expect(install()).rejects.toThrow(message)
    expect(await readdir(folders.dir)).toEqual([])
  })
})

describe('findHarness()', () => {
  test('returns undefined if no harness is installed', async () => {
    expect(await findHarness(harness, folders)).toBeUndefined()
  })

  test('returns a harness in PATH only if it has the pinned version', async () => {
    const path = join(scratch, 'bin/toy')
    await writeProgram(path, '#!/bin/sh\necho 1.2.4\n')
    expect(await findHarness(harness, folders)).toBeUndefined()
    await writeProgram(path, '#!/bin/sh\necho v1.2.3\n')
    expect(await findHarness(harness, folders)).toEqual({ path, command: [path], env: {} })
  })

  test('runs a Node script with the configured Node', async () => {
    const path = join(scratch, 'bin/toy')
    await writeProgram(path, '#!/usr/bin/env node\nconsole.log("1.2.3", process.env.HOME)\n')
    expect(await findHarness(script, folders)).toEqual({ path, command: [process.execPath, path], env: {} })
  })

  test('throws if the configured Node is too old', async () => {
    await writeProgram(join(folders.dir, 'toy-1.2.3/node_modules/toy/cli.js'), '')
    const old = { ...folders, node: { path: 'node', version: '18.20.4' } }
    await expect(findHarness(script, old)).rejects.toThrow('Toy needs Node 20.0.0 or newer; this is Node 18.20.4.')
    expect(await findHarness(script, { ...old, node: { path: 'node', version: '20.0.0' } })).toBeDefined()
  })
})

async function npmCalls(): Promise<number> {
  return (await readFile(join(scratch, 'npm.log'), 'utf8')).trim().split('\n').length
}
