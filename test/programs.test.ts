import { spawnSync } from 'node:child_process'
import { globSync, readFileSync } from 'node:fs'
import { basename, dirname, join } from 'node:path'
import { expect, test } from 'vitest'

const root = dirname(import.meta.dirname)
const COMPILE = 'import sys\nfor name in sys.argv[1:]: compile(open(name).read(), name, "exec")'

const shellFiles = filesOf('sh')
const [bashFiles, shFiles] = [shellFiles.filter(isBash), shellFiles.filter((file) => !isBash(file))]

test.for<[string, () => void]>([
  ['perl', () => filesOf('pl').forEach((file) => run(['perl', '-c'], withPrelude(file)))],
  ['python3', () => run(['python3', '-c', COMPILE, ...filesOf('py')])],
  ['sh', () => shFiles.forEach((file) => run(['sh', '-n', file]))],
  ['bash', () => bashFiles.forEach((file) => run(['bash', '-n', file]))],
  ['shellcheck', () => (run(['shellcheck', '--shell=sh', ...shFiles]), run(['shellcheck', ...bashFiles]))],
  ['node', () => filesOf('{cjs,mjs}').forEach((file) => run([process.execPath, '--check', file]))],
])('%s finds no error in the programs beside the TypeScript files', ([tool, check], { skip }) => {
  if (spawnSync(tool, ['-c', '']).error !== undefined) skip(`${tool} is not installed`)
  check()
})

function filesOf(extension: string): string[] {
  const files = globSync(`src/**/*.${extension}`, { cwd: root })
  expect(files).not.toEqual([])
  return files
}

function isBash(file: string): boolean {
  return readFileSync(join(root, file), 'utf8').includes('shellcheck shell=bash')
}

/** A folder's prelude.pl precedes every other program of the folder. */
function withPrelude(file: string): string {
  const preludes = basename(file) === 'prelude.pl' ? [] : globSync(join(dirname(file), 'prelude.pl'), { cwd: root })
  return [...preludes, file].map((each) => readFileSync(join(root, each), 'utf8')).join('')
}

function run([program, ...args]: readonly [string, ...string[]], input = ''): void {
  const { status, stdout, stderr } = spawnSync(program, args, { input, encoding: 'utf8', cwd: root })
  expect(status, `${args.join(' ')}: ${stdout}${stderr}`).toBe(0)
}
