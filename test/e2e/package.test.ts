import { execFile, execFileSync, spawnSync } from 'node:child_process'
import {
  cpSync,
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  writeFileSync,
} from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { promisify } from 'node:util'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { startEngine } from '../../packages/tiny-engine/src/engine.ts'
import { harnessPlaces } from '../../src/compose/harness-folders.ts'
import { installFolder } from '../../src/node/harness/find-harness.ts'
import { pi } from '../../src/node/harness/presets/pi.ts'
import { whyNoHarness } from '../support/installed-harness.ts'

const root = dirname(dirname(import.meta.dirname))
const sources = [
  'src',
  'packages',
  'scripts',
  'examples',
  'package.json',
  'tsconfig.json',
  'tsconfig.build.json',
  'README.md',
  'LICENSE',
]

describe('the published packages', () => {
  let directory: string
  let tarball: string
  let files: string[]

  beforeAll(() => {
    directory = mkdtempSync(join(tmpdir(), 'polar-package-'))
    for (const path of sources.filter((source) => existsSync(join(root, source)))) {
      cpSync(join(root, path), join(directory, path), { recursive: true })
    }
    symlinkSync(join(root, 'node_modules'), join(directory, 'node_modules'))
    run('npm', ['run', 'build'])
    const packed = pack('.')
    tarball = packed.filename
    files = packed.files
    run('tar', ['--extract', '--file', tarball])
    symlinkSync(join(root, 'node_modules'), join(directory, 'package/node_modules'))
  }, 600_000)
  afterAll(() => rmSync(directory, { recursive: true, force: true }))

  test('the tarball contains only the built code, the examples, the README and the licence', () => {
    expect(files).toContain('dist/cli/main.js')
    expect(files).toContain('dist/index.d.ts')
    expect(files.filter((file) => !/^(dist|examples\/(scripts|tasks))\//.test(file)).toSorted()).toEqual([
      'LICENSE',
      'README.md',
      'package.json',
    ])
  })

  test('the tarball contains the programs in other languages', () => {
    const programs = globSync('**/*.{cjs,mjs,pl,py,sh}', { cwd: join(root, 'src') })
    expect(files).toEqual(expect.arrayContaining(programs.map((file) => `dist/${file}`)))
    expect(programs).toContain('node/sandbox/linux/network/listen.pl')
  })

  test('the tarball contains no tests', () => {
    expect(files.filter((file) => /\.(test|contract)\./.test(file))).toEqual([])
  })

  test('the built code contains no URL of a TypeScript source', () => {
    const code = files.filter((file) => file.endsWith('.js'))
    expect(
      code.filter((file) => /new URL\(['"][^'"]*\.ts['"]/.test(readFileSync(join(directory, file), 'utf8'))),
    ).toEqual([])
  })

  test('polar --help prints the help text', () => {
    expect(run(process.execPath, ['package/dist/cli/main.js', '--help'])).toContain('polar')
  })

  test('the library example runs a task in one process', ({ skip }) => {
    const harnessFolders = harnessPlaces(undefined, process.env)
    if (!existsSync(installFolder(pi, harnessFolders.dir))) skip(whyNoHarness(pi))
    const program = join(directory, 'program')
    mkdirSync(join(program, 'node_modules'), { recursive: true })
    writeFileSync(join(program, 'package.json'), '{ "type": "module" }')
    symlinkSync(join(directory, 'package'), join(program, 'node_modules/polar-rl'))
    cpSync(join(root, 'examples/library/run.ts'), join(program, 'run.ts'))
    cpSync(join(root, 'examples/scripts/hello.yaml'), join(program, 'hello.yaml'))
    const env = { ...process.env, POLAR_HARNESS_DIR: harnessFolders.dir }
    const output = execFileSync(process.execPath, ['run.ts'], { cwd: program, encoding: 'utf8', env })
    expect(output.trim().split('\n')).toEqual([expect.stringMatching(/^\S+ 1$/), expect.stringMatching(/^\S+ 1$/)])
  })

  test('without optional dependencies polar works with --engine-url, and polar engine names the missing package', async () => {
    const folder = mkdtempSync(join(tmpdir(), 'polar-install-'))
    try {
      run('npm', ['install', '--omit=optional', '--no-audit', '--no-fund', join(directory, tarball)], folder)
      expect(existsSync(join(folder, 'node_modules/onnxruntime-web'))).toBe(false)
      const polar = join(folder, 'node_modules/polar-rl/dist/cli/main.js')
      const missing = spawnSync(process.execPath, [polar, 'engine'], { cwd: folder, encoding: 'utf8' })
      expect(missing).toMatchObject({ status: 2, stderr: expect.stringContaining('npm install @polar-rl/tiny-engine') })
      await using engine = await startEngine()
      const callEngine = `fetch(process.env.OPENAI_BASE_URL + '/chat/completions', { method: 'POST', headers: { authorization: 'Bearer ' + process.env.OPENAI_API_KEY, 'content-type': 'application/json' }, body: JSON.stringify({ model: process.env.POLAR_MODEL, max_tokens: 4, messages: [{ role: 'user', content: 'Hi' }] }) }).then(async (r) => { if (!r.ok) throw new Error(await r.text()) })`
      const record = ['record', '--engine-url', engine.url, '--out', 'out', '--', process.execPath, '-e', callEngine]
      await promisify(execFile)(process.execPath, [polar, ...record], { cwd: folder })
      const samples = run(process.execPath, [polar, 'export', 'all', '--from', 'out', '--format', 'jsonl'], folder)
      expect(
        samples
          .trim()
          .split('\n')
          .map((line) => JSON.parse(line) as unknown),
      ).toEqual([expect.objectContaining({ response_ids: expect.arrayContaining([expect.any(Number)]) })])
    } finally {
      rmSync(folder, { recursive: true, force: true })
    }
  })

  function pack(folder: string): { filename: string; files: string[] } {
    const [packed] = JSON.parse(run('npm', ['pack', '--json', folder])) as {
      filename: string
      files: { path: string }[]
    }[]
    return { filename: packed!.filename, files: packed!.files.map((file) => file.path) }
  }

  function run(command: string, args: string[], cwd = directory): string {
    return execFileSync(command, args, { cwd, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
  }
})
