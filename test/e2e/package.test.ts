import { execFileSync } from 'node:child_process'
import { cpSync, existsSync, globSync, mkdtempSync, readFileSync, rmSync, symlinkSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'

const root = dirname(dirname(import.meta.dirname))
const sources = [
  'src',
  'examples',
  'packages',
  'scripts',
  'package.json',
  'tsconfig.json',
  'tsconfig.build.json',
  'README.md',
  'LICENSE',
]

describe('the published package', () => {
  let directory: string
  let files: string[]

  beforeAll(() => {
    directory = mkdtempSync(join(tmpdir(), 'polar-package-'))
    for (const path of sources.filter((source) => existsSync(join(root, source)))) {
      cpSync(join(root, path), join(directory, path), { recursive: true })
    }
    symlinkSync(join(root, 'node_modules'), join(directory, 'node_modules'))
    run('npm', ['run', 'build'])
    const [tarball] = JSON.parse(run('npm', ['pack', '--json'])) as { filename: string; files: { path: string }[] }[]
    files = tarball!.files.map((file) => file.path)
    run('tar', ['--extract', '--file', tarball!.filename])
    symlinkSync(join(root, 'node_modules'), join(directory, 'package/node_modules'))
  })
  afterAll(() => rmSync(directory, { recursive: true, force: true }))

  test('holds the built code, the examples and the papers, nothing else', () => {
    expect(files).toContain('dist/cli/main.js')
    expect(files).toContain('dist/index.d.ts')
    expect(files.filter((file) => !/^(dist|examples\/(scripts|tasks))\//.test(file)).toSorted()).toEqual([
      'LICENSE',
      'README.md',
      'package.json',
    ])
  })

  test('holds the programs in other languages', () => {
    const programs = globSync('**/*.{cjs,mjs,pl,py,sh}', { cwd: join(root, 'src') })
    expect(files).toEqual(expect.arrayContaining(programs.map((file) => `dist/${file}`)))
    expect(programs).toContain('node/sandbox/linux/network/listen.pl')
  })

  test('holds no tests', () => {
    expect(files.filter((file) => /\.(test|contract)\./.test(file))).toEqual([])
  })

  test('names no source file: workers and other URLs say .js', () => {
    const code = files.filter((file) => file.endsWith('.js'))
    expect(
      code.filter((file) => /new URL\(['"][^'"]*\.ts['"]/.test(readFileSync(join(directory, file), 'utf8'))),
    ).toEqual([])
  })

  test('runs: the command prints its help', () => {
    expect(run(process.execPath, ['package/dist/cli/main.js', '--help'])).toContain('polar')
  })

  test('loads as a library', () => {
    run(process.execPath, ['--input-type=module', '--eval', `await import('./package/dist/index.js')`])
  })

  function run(command: string, args: string[]): string {
    return execFileSync(command, args, { cwd: directory, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
  }
})
