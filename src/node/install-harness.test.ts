import { chmod, mkdir, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { findHarness, type HarnessPlaces } from './find-harness.ts'
import type { Harness } from './harnesses/harness.ts'
import { installHarness } from './install-harness.ts'

const harness: Harness = {
  name: 'toy',
  title: 'Toy',
  npm: { package: '@toys/toy', version: '1.2.3' },
  command: 'toy',
  program: (platform) => ({ kind: 'native', paths: [`node_modules/toy-${platform}/toy`] }),
  dialect: 'openai-chat',
  hasSubAgents: false,
  configure: () => ({ files: {}, env: {}, args: [] }),
  exitCodes: {},
}

const script: Harness = {
  ...harness,
  program: () => ({ kind: 'node', paths: ['node_modules/toy/cli.js'] }),
  minimumNode: '20.0.0',
}

let scratch: string
let places: HarnessPlaces
beforeEach(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-install-'))
  const bin = join(scratch, 'bin')
  places = {
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

/** An npm that writes down how it was called and then does what the test wants. */
async function fakeNpm(effect: string): Promise<void> {
  await writeProgram(join(scratch, 'bin/npm'), `#!/bin/sh\necho "$@" >> ${scratch}/npm.log\n${effect}\n`)
}

const installToy = (version: string) => `
mkdir -p node_modules/toy-linux-x64
printf '#!/bin/sh\\necho "toy ${version} (a toy)"\\n' > node_modules/toy-linux-x64/toy
chmod +x node_modules/toy-linux-x64/toy`

function install(): ReturnType<typeof installHarness> {
  return installHarness(harness, { places, env: { PATH: places.path }, signal: new AbortController().signal })
}

describe('installHarness()', () => {
  test('asks npm for the exact version without scripts, and puts the result where it is found', async () => {
    await fakeNpm(installToy('1.2.3'))
    const { folder, program, bytes, isNew } = await install()
    expect(folder).toBe(join(places.dir, 'toy-1.2.3'))
    expect({ isNew, program }).toEqual({ isNew: true, program: join(folder, 'node_modules/toy-linux-x64/toy') })
    expect(bytes).toBeGreaterThan(30)
    const call = await readFile(join(scratch, 'npm.log'), 'utf8')
    expect(call).toMatch(
      /^install --prefix \S+ --ignore-scripts --no-audit --no-fund --omit=dev .*@toys\/toy@1\.2\.3\n$/,
    )
    expect(await findHarness(harness, places)).toEqual({ path: program, command: [program] })
    expect(await readdir(places.dir)).toEqual(['toy-1.2.3'])
  })

  test('does nothing the second time', async () => {
    await fakeNpm(installToy('1.2.3'))
    await install()
    expect(await install()).toMatchObject({ isNew: false })
    expect((await readFile(join(scratch, 'npm.log'), 'utf8')).trim().split('\n')).toHaveLength(1)
  })

  test('two at a time do not disturb each other', async () => {
    await fakeNpm(`sleep 0.1${installToy('1.2.3')}`)
    await Promise.all([install(), install()])
    expect(await readdir(places.dir)).toEqual(['toy-1.2.3'])
  })

  test.each([
    ['npm fails', 'echo "no such package" >&2; exit 7', /npm ended with 7:\nno such package/],
    ['the package has no program for this machine', 'true', /no program for linux-x64/],
    ['it is another version', installToy('1.2.4'), /its version is 1\.2\.4, not 1\.2\.3/],
  ])('leaves nothing behind when %s', async (_case, effect, message) => {
    await fakeNpm(effect)
    await expect(install()).rejects.toMatchObject({ code: 'harness.install-failed' })
    await expect(install()).rejects.toThrow(message)
    expect(await readdir(places.dir)).toEqual([])
  })
})

describe('findHarness()', () => {
  test('gives nothing when there is none', async () => {
    expect(await findHarness(harness, places)).toBeUndefined()
  })

  test('takes one from PATH if it has the right version, and no other', async () => {
    const path = join(scratch, 'bin/toy')
    await writeProgram(path, '#!/bin/sh\necho 1.2.4\n')
    expect(await findHarness(harness, places)).toBeUndefined()
    await writeProgram(path, '#!/bin/sh\necho v1.2.3\n')
    expect(await findHarness(harness, places)).toEqual({ path, command: [path] })
  })

  test('runs a script for Node with the Node it was given', async () => {
    const path = join(scratch, 'bin/toy')
    await writeProgram(path, '#!/usr/bin/env node\nconsole.log("1.2.3", process.env.HOME)\n')
    expect(await findHarness(script, places)).toEqual({ path, command: [process.execPath, path] })
  })

  test('says so when that Node is too old', async () => {
    await writeProgram(join(places.dir, 'toy-1.2.3/node_modules/toy/cli.js'), '')
    const old = { ...places, node: { path: 'node', version: '18.20.4' } }
    await expect(findHarness(script, old)).rejects.toThrow('Toy needs Node 20.0.0 or newer; this is Node 18.20.4.')
    expect(await findHarness(script, { ...old, node: { path: 'node', version: '20.0.0' } })).toBeDefined()
  })
})
