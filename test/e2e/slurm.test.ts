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
import { copyDatabase } from '../support/database-template.ts'

const main = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))
const script = fileURLToPath(new URL('../../examples/scripts/hello.yaml', import.meta.url))
const reason = whyNoSlurm()
const LEASE_SECONDS = 10
/** Slurm needs half a minute to mark a machine as down, and longer on a busy machine. */
const POLL_OPTIONS = { timeout: 100_000, interval: 200 }

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

/** Runs `polar cluster slurm …` as a user on a login node does. */
async function cluster(...words: string[]): Promise<Ran> {
  const args = [main, 'cluster', 'slurm', ...words, '--config', join(dir, 'polar.yaml')]
  // Must not reach the environment of a job.
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

/** Returns the process id of `polar node` itself, not of its parent shell or its children. */
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
  // The server opens a database faster than it creates one.
  await copyDatabase(join(dir, 'data/database'))
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

/** An agent that calls the model, appends a line to the file of its runs, and waits for the gate file. */
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
  test('up submits a job array and waits until its nodes have joined', async () => {
    const { code, stdout, stderr } = await cluster('up', '--wait', '60')
    expect(stderr + stdout).not.toContain('rror')
    expect(code).toBe(0)
    expect(stdout.match(/ joined /g)).toHaveLength(3)
    expect((await client.listNodes()).map(({ node_id: id }) => id).sort()).toEqual([
      'polar-1-0',
      'polar-1-1',
      'polar-1-2',
    ])
    // A second up with the same settings changes nothing.
    expect(await cluster('up', '--wait', '60')).toMatchObject({ code: 0 })
    expect(slurm.ask('squeue', '--noheader', '--array').trim().split('\n')).toHaveLength(3)
  })

  test('sbatch parses options with quotes, backslashes and shell syntax unchanged', () => {
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

  test('no secret is in the script, on a command line, in the environment of a job or in the job data of Slurm', async () => {
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

  test('sessions survive the loss of a machine, and of a machine that runs on while Slurm considers it lost', async () => {
    await submit('gated', gated('first'), 2)
    await expect.poll(() => runsOf('first'), POLL_OPTIONS).toBe(2)
    const [held] = await sessionsOf('gated')
    const orphan = held!.node_id!
    const nodeIds = (await client.listNodes()).map(({ node_id: id }) => id)
    const victim = nodeIds.find((id) => id !== orphan)!
    await submit('quick', bashAgent('call hello > answer; sleep 0.5'), 58)
    await expect
      .poll(async () => (await client.getTask({ params: { task_id: 'quick' } })).completed_sessions, POLL_OPTIONS)
      .toBeGreaterThan(3)

    const orphanMachine = machineOf(orphan)
    const orphanProcess = nodeProcess(orphanMachine)
    slurm.loseMachine(machineOf(victim), { killJobs: true })
    slurm.loseMachine(orphanMachine, { killJobs: false })

    // The remaining nodes, the orphan included, complete all sessions that do not wait for the gate.
    await expect
      .poll(async () => (await client.getTask({ params: { task_id: 'quick' } })).status, POLL_OPTIONS)
      .toBe('completed')
    expect(commandOf(orphanProcess)).toContain(orphan)

    // Slurm marks both machines as down and restarts both tasks; the orphan is stopped meanwhile.
    await expect.poll(() => stateOf(taskOf(orphan)), POLL_OPTIONS).toBe('PENDING')
    process.kill(orphanProcess, 'SIGSTOP')
    await expect.poll(async () => statesOf(await members()), POLL_OPTIONS).toEqual(['joined', 'joined', 'joined'])
    expect(machineOf(orphan)).not.toBe(orphanMachine)
    // The session of the orphan is leased to another node when the successor of the orphan has joined.
    await expect.poll(() => runsOf('first'), POLL_OPTIONS).toBeGreaterThan(2)
    open('first')
    await expect
      .poll(async () => (await client.getTask({ params: { task_id: 'gated' } })).status, POLL_OPTIONS)
      .toBe('completed')

    // The orphan continues with a finished result and stops, since its node id belongs to its successor.
    process.kill(orphanProcess, 'SIGCONT')
    await expect.poll(() => commandOf(orphanProcess), POLL_OPTIONS).toBe('')
    const { attempts, status } = await client.getSession({ params: { session_id: held!.session_id } })
    expect(status).toBe('COMPLETED')
    expect(attempts[0]).toMatchObject({ node_id: orphan, ending: 'lost' })
    expect(attempts.filter(({ ending }) => ending === 'accepted')).toHaveLength(1)
    expect(attempts.at(-1)).toMatchObject({ ending: 'accepted' })
    const log = readFileSync(join(dir, 'shared folder/logs', `${taskOf(orphan)}.log`), 'utf8')
    expect(log).toContain('another process has joined with the same node id; this process stops')
    // A late delivery of the result of the orphan is rejected.
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

  test('a result that a node could not deliver is delivered by its successor on another machine, and the session is not repeated', async () => {
    await submit('kept', gated('second'), 1)
    await expect.poll(() => runsOf('second'), POLL_OPTIONS).toBe(1)
    const [held] = await sessionsOf('kept')
    const nodeId = held!.node_id!
    const machine = machineOf(nodeId)
    server.kill('SIGSTOP')
    open('second')
    const outcome = await untilFile(nodeId, held!.session_id, 'outcome.json')
    expect(JSON.parse(readFileSync(outcome, 'utf8'))).toMatchObject({ status: 'COMPLETED' })
    slurm.ask('scontrol', 'update', `NodeName=${machine}`, 'State=DOWN', 'Reason=test')
    // The successor on another machine has adopted the session.
    await untilFile(nodeId, held!.session_id, 'adopted')
    server.kill('SIGCONT')
    await expect
      .poll(async () => (await client.getTask({ params: { task_id: 'kept' } })).status, POLL_OPTIONS)
      .toBe('completed')
    const { attempts } = await client.getSession({ params: { session_id: held!.session_id } })
    expect(attempts).toMatchObject([{ attempt: 1, node_id: nodeId, ending: 'accepted' }])
    expect(runsOf('second')).toBe(1)
  })

  test('logs shows the end of each log, and status shows the states of Slurm and of the server', async () => {
    const { code, stdout } = await cluster('logs', '--lines', '5')
    expect(code).toBe(0)
    for (const task of [0, 1, 2]) expect(stdout).toContain(`==> polar-1-${task} (`)
    const table = await cluster('status')
    expect(table.stdout).toMatch(/polar-1-0 +joined +1_0 +RUNNING +n\d/)
  })

  test('down drains the nodes, leaves no job and can be repeated', async () => {
    const { code, stderr } = await cluster('down', '--grace', '30')
    expect(stderr).toContain('3 nodes drained, 0 cancelled')
    expect(code).toBe(0)
    expect(slurm.ask('squeue', '--noheader').trim()).toBe('')
    expect((await client.listNodes()).filter(({ healthy }) => healthy)).toEqual([])
    expect(await cluster('down')).toMatchObject({ code: 0 })
    expect(await members()).toEqual([])
  })
}

/** Returns the id of the array task in Slurm. */
function taskOf(nodeId: string): string {
  const [, job, task] = nodeId.split('-')
  return `${job}_${task}`
}

function statesOf(all: readonly Member[]): string[] {
  return all.map(({ state }) => state)
}

/** Waits for a file of a session in any of the folders of its node on the shared storage, and returns its path. */
async function untilFile(nodeId: string, sessionId: string, name: string): Promise<string> {
  const folders = join(dir, 'shared folder/nodes', nodeId)
  const find = (): string[] =>
    readdirSync(folders)
      .map((folder) => join(folders, folder, 'nodes', nodeId, 'sessions', sessionId, name))
      .filter((file) => existsSync(file))
  await expect.poll(find, POLL_OPTIONS).toHaveLength(1)
  return find()[0]!
}
