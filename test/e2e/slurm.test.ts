import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, expect, test } from 'vitest'
import type { Member } from '../../src/cli/cluster/slurm-members.ts'
import { renderNodeScript } from '../../src/cli/cluster/slurm-script.ts'
import { type Client, createClient } from '../../src/client/client.ts'
import { RolloutError } from '../../src/model/failure.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { shellTask } from '../support/node-stack.ts'
import { type Slurm, startSlurm, whyNoSlurm } from '../support/slurm.ts'

const main = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))
const script = fileURLToPath(new URL('../../examples/scripts/hello.yaml', import.meta.url))
const reason = whyNoSlurm()
const LEASE_SECONDS = 10
/** Slurm needs half a minute to give up a machine, and this machine may have other things to do. */
const PATIENT = { timeout: 100_000, interval: 200 }

let dir: string
let slurm: Slurm
let server: ChildProcess
let client: Client
let token: string
let url: string

interface Ran {
  code: number | null
  stdout: string
  stderr: string
}

/** `polar cluster slurm …`, as somebody on a login node calls it. */
async function cluster(...words: string[]): Promise<Ran> {
  const args = [main, 'cluster', 'slurm', ...words, '--config', join(dir, 'polar.yaml')]
  // What must not reach a job unless it is asked for.
  const env = { ...slurm.env, HIDDEN: 'hidden-value' }
  const child = spawn(process.execPath, args, { cwd: dir, env, stdio: ['ignore', 'pipe', 'pipe'] })
  const [stdout, stderr] = await Promise.all([text(child.stdout), text(child.stderr)])
  if (child.exitCode === null) await once(child, 'exit')
  return { code: child.exitCode, stdout, stderr }
}

async function members(): Promise<Member[]> {
  const { stdout } = await cluster('status', '--json')
  return stdout
    .split('\n')
    .filter((line) => line !== '')
    .map((line) => JSON.parse(line) as Member)
}

const machineOf = (nodeId: string): string =>
  slurm.ask('squeue', '--noheader', '--format=%N', `--jobs=${taskOf(nodeId)}`).trim()

const stateOf = (task: string): string => slurm.ask('squeue', '--noheader', '--format=%T', `--jobs=${task}`).trim()

function commandOf(pid: number): string {
  try {
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').replaceAll('\0', ' ')
  } catch {
    return ''
  }
}

/** `polar node` itself, not the shell that started it nor what it started. */
function nodeProcess(machine: string): number {
  const found = slurm.processesOf(machine).jobs.find((pid) => commandOf(pid).includes(`${main} node `))
  if (found === undefined) throw new Error(`No node runs on ${machine}.`)
  return found
}

beforeAll(async () => {
  if (reason !== undefined) return
  dir = mkdtempSync(join(tmpdir(), 'polar-cluster-'))
  mkdirSync(join(dir, 'gates'))
  const config = {
    data: 'data',
    log: 'info',
    server: { port: 0, lease_seconds: LEASE_SECONDS },
    node: { runtime: 'local', widths: { init: 4, ready: 4, run: 4, postrun: 4 } },
    engine: { script },
    cluster: { slurm: { nodes: 3, partition: 'rollouts', cpus: 2, work_dir: 'shared folder', time: '00:10:00' } },
  }
  writeFileSync(join(dir, 'polar.yaml'), JSON.stringify(config))
  const args = [main, 'server', '--config', join(dir, 'polar.yaml'), '--json']
  server = spawn(process.execPath, args, { cwd: dir, stdio: ['ignore', 'pipe', 'inherit'] })
  const [started] = await Promise.all([startSlurm({ machines: 5 }), untilReady(server)])
  slurm = started
  const tokens = JSON.parse(readFileSync(join(dir, 'data/tokens.json'), 'utf8')) as { trainer: string; node: string }
  token = tokens.node
  ;({ url } = JSON.parse(readFileSync(join(dir, 'data/server.json'), 'utf8')) as { url: string })
  client = createClient({ baseUrl: url, token: tokens.trainer })
})

afterAll(async () => {
  if (reason !== undefined) return
  await slurm?.[Symbol.asyncDispose]()
  if (server.exitCode === null && server.signalCode === null) {
    server.kill('SIGCONT')
    server.kill('SIGTERM')
    await once(server, 'exit')
  }
  rmSync(dir, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 })
})

async function untilReady(child: ChildProcess): Promise<void> {
  for await (const line of createInterface(child.stdout!)) if (line.includes('"ready"')) return
  throw new Error('The server ended before it was ready.')
}

/** An agent that asks the model, says that it was there, and goes on when the gate is open. */
function gated(gate: string): string {
  const file = join(dir, 'gates', gate)
  return bashAgent(`call hello > answer; echo run >> ${file}.runs; until [ -e ${file} ]; do sleep 0.1; done`)
}

const open = (gate: string): void => writeFileSync(join(dir, 'gates', gate), '')
const runsOf = (gate: string): number => {
  const file = join(dir, 'gates', `${gate}.runs`)
  return existsSync(file) ? readFileSync(file, 'utf8').trim().split('\n').length : 0
}

async function submit(taskId: string, agent: string, samples: number): Promise<void> {
  await client.submitTask({ body: { ...shellTask(agent), task_id: taskId, num_samples: samples } })
}

const sessionsOf = async (taskId: string) =>
  (await client.listSessions({ query: { task_id: taskId, limit: 1000 } })).sessions

if (reason !== undefined)
  test('nodes as a job array of Slurm', (context) => context.skip(`stands for 7 tests: ${reason}`))
else {
  test('up submits a job array, and waits until its nodes have joined', async () => {
    const { code, stdout, stderr } = await cluster('up', '--wait', '60')
    expect(stderr + stdout).not.toContain('rror')
    expect(code).toBe(0)
    expect(stdout.match(/ joined /g)).toHaveLength(3)
    expect((await client.listNodes()).map(({ node_id: id }) => id).sort()).toEqual([
      'polar-1-0',
      'polar-1-1',
      'polar-1-2',
    ])
    // Asking for what is there already changes nothing.
    expect(await cluster('up', '--wait', '60')).toMatchObject({ code: 0 })
    expect(slurm.ask('squeue', '--noheader', '--array').trim().split('\n')).toHaveLength(3)
  })

  test('sbatch reads our options as they were meant, whatever is in them', () => {
    const comment = String.raw`it's "so" \b $(x) `.concat('`y` # z; é')
    const file = join(dir, 'hostile.sh')
    const workDir = join(dir, 'a "b" c')
    const options = [`--comment=${comment}`, '--hold', '--partition=rollouts']
    const plan = { name: 'polar', workDir, options, rawOptions: ['--cpus-per-task 2'], setup: [], polar: ['false'] }
    writeFileSync(file, renderNodeScript({ ...plan, tasks: 2, nodeArguments: [], requeue: false }))
    const job = slurm.ask('sbatch', '--parsable', file).trim()
    const [line] = slurm.ask('squeue', '--noheader', '--format=%C|%k', `--jobs=${job}`).split('\n')
    slurm.ask('scancel', job)
    expect(line).toBe(`2|${comment}`)
  })

  test('no secret is in the script, on a command line, or in what Slurm knows', async () => {
    const { jobs } = JSON.parse(readFileSync(join(dir, 'data/cluster/slurm.json'), 'utf8')) as {
      jobs: { script: string }[]
    }
    const known = [readFileSync(jobs[0]!.script, 'utf8'), slurm.ask('scontrol', 'show', 'job', '--details')]
    for (const machine of slurm.machines) {
      for (const pid of slurm.processesOf(machine).jobs)
        known.push(commandOf(pid), readFileSync(`/proc/${pid}/environ`, 'utf8'))
    }
    expect(known.length).toBeGreaterThan(8)
    expect(known.join('\n')).not.toContain(token)
    expect(known.join('\n')).not.toContain('hidden-value')
  })

  test('sessions survive a machine that is lost, and one that Slurm takes for lost while it goes on', async () => {
    await submit('gated', gated('first'), 2)
    await expect.poll(() => runsOf('first'), PATIENT).toBe(2)
    const [held] = await sessionsOf('gated')
    const orphan = held!.node_id!
    const everybody = (await client.listNodes()).map(({ node_id: id }) => id)
    const victim = everybody.find((id) => id !== orphan)!
    await submit('quick', bashAgent('call hello > answer; sleep 0.5'), 58)
    await expect
      .poll(async () => (await client.getTask({ params: { task_id: 'quick' } })).completed_sessions, PATIENT)
      .toBeGreaterThan(3)

    const orphanMachine = machineOf(orphan)
    const orphanProcess = nodeProcess(orphanMachine)
    slurm.loseMachine(machineOf(victim), { killJobs: true })
    slurm.loseMachine(orphanMachine, { killJobs: false })

    // All that can be done without the gate is, by those who are left: the orphan is one of them.
    await expect
      .poll(async () => (await client.getTask({ params: { task_id: 'quick' } })).status, PATIENT)
      .toBe('completed')
    expect(commandOf(orphanProcess)).toContain(orphan)

    // Slurm has given both machines up, and starts both tasks again; the orphan sleeps through it.
    await expect.poll(() => stateOf(taskOf(orphan)), PATIENT).toBe('PENDING')
    process.kill(orphanProcess, 'SIGSTOP')
    await expect.poll(async () => statesOf(await members()), PATIENT).toEqual(['joined', 'joined', 'joined'])
    expect(machineOf(orphan)).not.toBe(orphanMachine)
    // Its session is somebody else's as soon as its successor has joined.
    await expect.poll(() => runsOf('first'), PATIENT).toBeGreaterThan(2)
    open('first')
    await expect
      .poll(async () => (await client.getTask({ params: { task_id: 'gated' } })).status, PATIENT)
      .toBe('completed')

    // It wakes up with a result in its hands, and finds that it is nobody any more.
    process.kill(orphanProcess, 'SIGCONT')
    await expect.poll(() => commandOf(orphanProcess), PATIENT).toBe('')
    const { attempts, status } = await client.getSession({ params: { session_id: held!.session_id } })
    expect(status).toBe('COMPLETED')
    expect(attempts[0]).toMatchObject({ node_id: orphan, ending: 'lost' })
    expect(attempts.filter(({ ending }) => ending === 'accepted')).toHaveLength(1)
    expect(attempts.at(-1)).toMatchObject({ ending: 'accepted' })
    const log = readFileSync(join(dir, 'shared folder/logs', `${taskOf(orphan)}.log`), 'utf8')
    expect(log).toContain('another process has joined with the same node id; this process stops')
    // What it had finished, as somebody would bring it who has not heard of that.
    const late = {
      schemaVersion: 1 as const,
      sessionId: held!.session_id,
      taskId: 'gated',
      attempt: 1,
      nodeId: orphan,
      status: 'ERROR' as const,
      failure: new RolloutError('session.node-lost', 'late').failure,
      timing: {},
      artifacts: [],
      endedAt: Date.now(),
    }
    const nodes = createClient({ baseUrl: url, token })
    await expect(nodes.completeSession({ params: { node_id: orphan }, body: { outcome: late } })).rejects.toMatchObject(
      {
        code: 'request.stale',
      },
    )

    const all = [...(await sessionsOf('gated')), ...(await sessionsOf('quick'))]
    expect(all.map((session) => session.status)).toEqual(Array.from({ length: 60 }, () => 'COMPLETED'))
  })

  test('what a task finished and could not deliver is delivered when it runs elsewhere, and not done again', async () => {
    await submit('kept', gated('second'), 1)
    await expect.poll(() => runsOf('second'), PATIENT).toBe(1)
    const [held] = await sessionsOf('kept')
    const nodeId = held!.node_id!
    const machine = machineOf(nodeId)
    server.kill('SIGSTOP')
    open('second')
    const outcome = await untilFile(nodeId, held!.session_id, 'outcome.json')
    expect(JSON.parse(readFileSync(outcome, 'utf8'))).toMatchObject({ status: 'COMPLETED' })
    slurm.ask('scontrol', 'update', `NodeName=${machine}`, 'State=DOWN', 'Reason=test')
    // Its successor, on another machine, has found it.
    await untilFile(nodeId, held!.session_id, 'adopted')
    server.kill('SIGCONT')
    await expect
      .poll(async () => (await client.getTask({ params: { task_id: 'kept' } })).status, PATIENT)
      .toBe('completed')
    const { attempts } = await client.getSession({ params: { session_id: held!.session_id } })
    expect(attempts).toMatchObject([{ attempt: 1, node_id: nodeId, ending: 'accepted' }])
    expect(runsOf('second')).toBe(1)
  })

  test('logs shows the end of each log, and status what Slurm and the server say', async () => {
    const { code, stdout } = await cluster('logs', '--lines', '5')
    expect(code).toBe(0)
    for (const task of [0, 1, 2]) expect(stdout).toContain(`==> polar-1-${task} (`)
    const table = await cluster('status')
    expect(table.stdout).toMatch(/polar-1-0 +joined +1_0 +RUNNING +n\d/)
  })

  test('down drains the nodes and leaves no job, and may be called again', async () => {
    const { code, stderr } = await cluster('down', '--grace', '30')
    expect(stderr).toContain('3 nodes drained, 0 cancelled')
    expect(code).toBe(0)
    expect(slurm.ask('squeue', '--noheader').trim()).toBe('')
    expect((await client.listNodes()).filter(({ healthy }) => healthy)).toEqual([])
    expect(await cluster('down')).toMatchObject({ code: 0 })
    expect(await members()).toEqual([])
  })
}

/** As Slurm calls it. */
function taskOf(nodeId: string): string {
  const [, job, task] = nodeId.split('-')
  return `${job}_${task}`
}

function statesOf(all: readonly Member[]): string[] {
  return all.map(({ state }) => state)
}

/** A file of a session on the shared storage, wherever its node had its folder then; once it is there. */
async function untilFile(nodeId: string, sessionId: string, name: string): Promise<string> {
  const turns = join(dir, 'shared folder/nodes', nodeId)
  const find = (): string[] =>
    readdirSync(turns)
      .map((turn) => join(turns, turn, 'nodes', nodeId, 'sessions', sessionId, name))
      .filter((file) => existsSync(file))
  await expect.poll(find, PATIENT).toHaveLength(1)
  return find()[0]!
}
