import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { mayProtectFromOutOfMemory, protectFromOutOfMemory } from './oom-score.ts'
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
/** Prints what it returned, what it expected, its own score before and after, and the score of a process that it starts afterwards. */
const SCRIPT = `
const { mayProtectFromOutOfMemory, protectFromOutOfMemory } = await import(${JSON.stringify(MODULE)})
const { execFileSync } = await import('node:child_process')
const read = (pid) => Number(execFileSync('cat', ['/proc/' + pid + '/oom_score_adj'], { encoding: 'utf8' }))
const before = read(process.pid)
const mayProtect = mayProtectFromOutOfMemory()
const probed = read(process.pid)
const isProtected = protectFromOutOfMemory()
const own = read(process.pid)
console.log(JSON.stringify({ before, mayProtect, probed, isProtected, own, child: read('self') }))`

test('a process that may lower its score has it lowered, with its children; another keeps it', async () => {
  const env = { PATH: '/usr/bin:/bin' }
  const { stdout, stderr } = await runProgram([process.execPath, '--input-type=module', '-e', SCRIPT], { env })
  expect(stdout, stderr).not.toBe('')
  const { before, mayProtect, probed, isProtected, own, child } = JSON.parse(stdout)
  expect([mayProtect, probed]).toEqual([isProtected, before])
  expect([own <= -900, child]).toEqual([isProtected, own])
})

const WHOLE = '         0          0 4294967295\n'
const ROOT = '000001ffffffffff'
const ALL_BUT_SYS_RESOURCE = '000001fffeffffff'

test.each([
  { score: 0, capabilities: ROOT, mapping: WHOLE, mode: 0o644, may: true },
  { score: 0, capabilities: ALL_BUT_SYS_RESOURCE, mapping: WHOLE, mode: 0o644, may: false },
  // Root of a user namespace has every capability there, which does not count for the score.
  { score: 0, capabilities: ROOT, mapping: '         0     100000      65536\n', mode: 0o644, may: false },
  { score: -950, capabilities: ALL_BUT_SYS_RESOURCE, mapping: WHOLE, mode: 0o444, may: true },
])(
  'mayProtectFromOutOfMemory() reads the rights of a process: %o',
  async ({ score, capabilities, mapping, ...rest }) => {
    await writeFile(join(dir, 'oom_score_adj'), String(score), { mode: rest.mode })
    await writeFile(join(dir, 'status'), `Name:\tnode\nCapEff:\t${capabilities}\nCapBnd:\t${ROOT}\n`)
    await writeFile(join(dir, 'uid_map'), mapping)
    expect(mayProtectFromOutOfMemory(dir)).toBe(rest.may)
    expect(await readFile(join(dir, 'oom_score_adj'), 'utf8')).toBe(String(score))
  },
)

test('mayProtectFromOutOfMemory() is false where there is no score, as on other systems than Linux', () => {
  expect(mayProtectFromOutOfMemory(join(dir, 'missing'))).toBe(false)
})
