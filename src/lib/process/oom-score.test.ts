import { readFileSync } from 'node:fs'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { protectFromOutOfMemory } from './oom-score.ts'
import { runProgram } from './run-program.ts'

let dir: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-oom-score-'))
})
afterEach(() => rm(dir, { recursive: true, force: true }))

test.each([
  ['1000', '-900'],
  ['0', '-900'],
  ['-899', '-900'],
  ['-900', '-900'],
  // An operator has chosen it.
  ['-950', '-950'],
  ['-1000', '-1000'],
])('protectFromOutOfMemory() turns a score of %s into %s', async (before, after) => {
  const file = join(dir, 'oom_score_adj')
  await writeFile(file, before)
  expect(protectFromOutOfMemory(file)).toBe(true)
  expect(await readFile(file, 'utf8')).toBe(after)
})

test('protectFromOutOfMemory() is false where the score cannot be changed', () => {
  expect(protectFromOutOfMemory(join(dir, 'missing'))).toBe(false)
})

const MODULE = new URL('./oom-score.ts', import.meta.url).href
/** Prints what it returned, its own score, and the score of a process that it starts afterwards. */
const SCRIPT = `
const { protectFromOutOfMemory } = await import(${JSON.stringify(MODULE)})
const { execFileSync } = await import('node:child_process')
const read = (pid) => Number(execFileSync('cat', ['/proc/' + pid + '/oom_score_adj'], { encoding: 'utf8' }))
const isProtected = protectFromOutOfMemory()
console.log(JSON.stringify({ isProtected, own: read(process.pid), child: read('self') }))`

test('a process that may lower its score has it lowered, with its children; another keeps it', async () => {
  const status = readFileSync('/proc/self/status', 'utf8')
  const capabilities = BigInt(`0x${/^CapEff:\s+([0-9a-f]+)/m.exec(status)![1]!}`)
  const CAP_SYS_RESOURCE = 24n
  const mayLower = (capabilities & (1n << CAP_SYS_RESOURCE)) !== 0n
  const env = { PATH: '/usr/bin:/bin' }
  const { stdout, stderr } = await runProgram([process.execPath, '--input-type=module', '-e', SCRIPT], { env })
  expect(stdout, stderr).not.toBe('')
  const { isProtected, own, child } = JSON.parse(stdout)
  expect([isProtected, child]).toEqual([mayLower || own <= -900, own])
  expect(own <= -900).toBe(isProtected)
})
