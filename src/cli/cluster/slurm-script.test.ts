import { spawn, spawnSync } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterAll, expect, test } from 'vitest'
import { renderNodeScript, renderServerScript, sbatchWord, type NodeScriptPlan } from './slurm-script.ts'

const scratch = mkdtempSync(join(tmpdir(), 'polar-script-'))
afterAll(() => rmSync(scratch, { recursive: true, force: true }))

const HOSTILE = [
  "it's",
  '"quoted"',
  '$(touch pwned)',
  '`touch pwned`',
  '$HOME',
  '; touch pwned #',
  'a b  c',
  '\\',
  '*',
  '!x',
  '-n',
  '${polar[@]}',
  'ünïcode 漢字',
  '',
]

/** Replaces Polar: records its arguments and signals, and exits with the code and after the delay of the variable FAKE. */
const FAKE = join(scratch, 'fake.cjs')
writeFileSync(
  FAKE,
  `
const { appendFileSync } = require('node:fs')
appendFileSync(process.env.CALLS, JSON.stringify({ argv: process.argv.slice(2), pid: process.pid }) + '\\n')
const [code, wait] = process.env.FAKE.split(' ')
process.on('SIGTERM', () => { appendFileSync(process.env.CALLS, '"SIGTERM"\\n'); process.exit(0) })
console.log('running')
setTimeout(() => process.exit(Number(code)), Number(wait))
`,
)

function planOf(name: string, plan: Partial<NodeScriptPlan> = {}): NodeScriptPlan {
  const workDir = join(scratch, name)
  mkdirSync(workDir, { recursive: true })
  return {
    name: 'polar',
    workDir,
    options: [],
    rawOptions: [],
    setup: [],
    polar: [process.execPath, FAKE],
    tasks: 3,
    nodeArguments: [],
    requeue: true,
    ...plan,
  }
}

interface Ran {
  calls: unknown[]
  status: number | null
  output: string
}

/** Prepares the variables of a Slurm job and a scontrol that prints its arguments. */
function prepare(plan: NodeScriptPlan, fake: string): { file: string; env: Record<string, string>; calls: string } {
  const programs = join(plan.workDir, 'bin')
  mkdirSync(programs, { recursive: true })
  writeFileSync(join(programs, 'scontrol'), `#!/bin/sh\necho "scontrol $*"\nkill -KILL $PPID\n`, { mode: 0o755 })
  const file = join(plan.workDir, 'script.sh')
  writeFileSync(file, renderNodeScript(plan))
  const calls = join(plan.workDir, 'calls')
  const slurm = { SLURM_ARRAY_JOB_ID: '12', SLURM_ARRAY_TASK_ID: '1', SLURM_JOB_ID: '13' }
  const env = { PATH: `${programs}:${process.env['PATH']}`, CALLS: calls, FAKE: fake, HOME: '/nowhere', ...slurm }
  return { file, env, calls }
}

function runScript(plan: NodeScriptPlan, fake = '0 0'): Ran {
  const { file, env, calls } = prepare(plan, fake)
  const ran = spawnSync('bash', [file], { env, cwd: plan.workDir, encoding: 'utf8' })
  return { calls: readCalls(calls), status: ran.status, output: ran.stdout + ran.stderr }
}

function readCalls(path: string): unknown[] {
  if (!existsSync(path)) return []
  return readFileSync(path, 'utf8')
    .trim()
    .split('\n')
    .map((line) => JSON.parse(line) as unknown)
}

test('renderNodeScript() passes every value to polar unchanged', () => {
  const plan = planOf('hostile', { nodeArguments: HOSTILE })
  const { calls, status, output } = runScript(plan)
  expect(output).not.toContain('syntax error')
  expect(status).toBe(0)
  expect(calls).toEqual([
    {
      argv: ['node', ...HOSTILE, '--id', 'polar-12-1', '--dir', `${plan.workDir}/nodes/polar-12-1/0`],
      pid: expect.any(Number) as number,
    },
  ])
  expect(existsSync(join(plan.workDir, 'pwned'))).toBe(false)
})

test.each(['spaces and "quotes"', "it's", '$(touch pwned)', '; touch pwned'])(
  'renderNodeScript() accepts the work_dir %s',
  (name) => {
    const plan = planOf(name)
    const { calls, status } = runScript(plan)
    expect(status).toBe(0)
    expect(calls).toHaveLength(1)
    expect(existsSync(join(plan.workDir, 'nodes/polar-12-1/0'))).toBe(true)
    expect(existsSync(join(plan.workDir, 'pwned'))).toBe(false)
  },
)

test.each([
  ['a newline in an option', { options: ['--partition=a\n#SBATCH --uid=0'] }],
  ['a newline in an argument', { nodeArguments: ['--label', 'a\ntouch pwned'] }],
  ['a newline in a name', { name: 'a\nb' }],
  ['a carriage return in an option of the operator', { rawOptions: ['--exclusive\r--uid=0'] }],
  ['half of a character', { nodeArguments: ['\uD800'] }],
  ['a NUL', { options: ['--comment=a\0b'] }],
  ['a percent sign in work_dir, which Slurm would fill in', { workDir: '/shared/100%A' }],
])('renderNodeScript() rejects %s', (_, part) => {
  expect(() => renderNodeScript(planOf('refused', part))).toThrow(expect.objectContaining({ code: 'config.invalid' }))
})

test('renderNodeScript() writes its own options after the operator’s, so that they take precedence', () => {
  const lines = renderNodeScript(planOf('order', { rawOptions: ['--array=0-99', '-C a100'] })).split('\n')
  expect(lines.slice(0, 5)).toEqual([
    '#!/bin/bash',
    '#SBATCH --array=0-99',
    '#SBATCH -C a100',
    '#SBATCH "--job-name=polar"',
    '#SBATCH "--array=0-2"',
  ])
})

test('sbatchWord() escapes the characters that sbatch interprets', () => {
  expect(sbatchWord(String.raw`--comment=a "b" \c $d`)).toBe(String.raw`"--comment=a \"b\" \\c $d"`)
})

test('each start of a job has its own folder and adopts the folders of earlier starts', () => {
  const plan = planOf('turns')
  runScript(plan)
  runScript(plan)
  const { calls } = runScript(plan)
  const id = `${plan.workDir}/nodes/polar-12-1`
  expect(calls.at(-1)).toMatchObject({
    argv: ['node', '--id', 'polar-12-1', '--dir', `${id}/2`, '--adopt', `${id}/0`, '--adopt', `${id}/1`],
  })
})

test('a node that exits with a usage error is not restarted', () => {
  expect(runScript(planOf('usage'), '2 0')).toMatchObject({ status: 2, calls: [{}] })
})

test('a node that crashes while a newer start of its task exists is not restarted', () => {
  const plan = planOf('orphan')
  mkdirSync(join(plan.workDir, 'nodes/polar-12-1'), { recursive: true })
  // The newer start creates its folder while this node runs.
  const setup = [`(sleep 0.2; mkdir '${plan.workDir}/nodes/polar-12-1/1') &`]
  expect(runScript({ ...plan, setup }, '1 1000')).toMatchObject({ status: 1, calls: [{}] })
})

test('a node that crashes is restarted with the same folder', async () => {
  const plan = planOf('crash')
  const { file, env, calls } = prepare(plan, '1 0')
  const child = spawn('bash', [file], { env, cwd: plan.workDir, stdio: ['ignore', 'pipe', 'inherit'] })
  let starts = 0
  for await (const line of createInterface(child.stdout)) {
    if (line === 'running') starts += 1
    if (starts === 2) child.kill('SIGTERM')
  }
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
  expect(child.exitCode).toBe(1)
  const dirs = readCalls(calls).map((call) => (call as { argv: string[] }).argv.at(-1))
  expect(dirs).toEqual([`${plan.workDir}/nodes/polar-12-1/0`, `${plan.workDir}/nodes/polar-12-1/0`])
})

async function runUntilReady(plan: NodeScriptPlan, act: (pid: number) => void): Promise<Ran> {
  const { file, env, calls } = prepare(plan, '0 20000')
  const child = spawn('bash', [file], { env, cwd: plan.workDir, stdio: ['ignore', 'pipe', 'inherit'] })
  let output = ''
  for await (const line of createInterface(child.stdout)) {
    output += `${line}\n`
    if (line === 'running') act(child.pid!)
  }
  if (child.exitCode === null && child.signalCode === null) await once(child, 'exit')
  return { calls: readCalls(calls), status: child.exitCode, output }
}

test('at the time limit, the node drains and the job requeues itself', async () => {
  const ran = await runUntilReady(planOf('time'), (pid) => process.kill(pid, 'SIGUSR1'))
  expect(ran.calls).toEqual([expect.anything(), 'SIGTERM'])
  expect(ran.output).toContain('scontrol requeue 12_1')
})

test('a job that is taken down does not requeue itself', async () => {
  const plan = planOf('stopped')
  const ran = await runUntilReady(plan, (pid) => {
    writeFileSync(join(plan.workDir, 'stop-12'), '')
    process.kill(pid, 'SIGUSR1')
  })
  expect(ran).toMatchObject({ status: 0, calls: [{}, 'SIGTERM'] })
  expect(ran.output).not.toContain('scontrol')
})

test('renderServerScript() writes the server’s URL to a file, and removes the file when the server ends', async () => {
  const plan = planOf('server')
  const program = `
    console.log(JSON.stringify({ event: 'ready', url: 'http://0.0.0.0:8123' }))
    process.on('SIGTERM', () => process.exit(0))
    setTimeout(() => process.exit(9), 20000)`
  const file = join(plan.workDir, 'script.sh')
  const polar = [process.execPath, join(plan.workDir, 'server.cjs')]
  writeFileSync(polar[1]!, program)
  writeFileSync(file, renderServerScript({ ...plan, polar, serverArguments: HOSTILE }))
  const env = { PATH: process.env['PATH'], SLURM_JOB_ID: '77' }
  const child = spawn('bash', [file], { env, cwd: plan.workDir, stdio: ['ignore', 'pipe', 'inherit'] })
  const address = join(plan.workDir, 'server-77.url')
  await once(child.stdout, 'data')
  await expect.poll(() => existsSync(address), { timeout: 10_000 }).toBe(true)
  expect(readFileSync(address, 'utf8')).toMatch(/^http:\/\/[^:/]+:8123\n$/)
  child.kill('SIGTERM')
  await once(child, 'exit')
  expect(child.exitCode).toBe(0)
  expect(existsSync(address)).toBe(false)
})
