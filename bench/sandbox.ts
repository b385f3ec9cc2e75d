/**
 * Measures the cost of a sandbox: to start, to run a command in, a hundred at a time, and to prepare for a task, cold and
 * warm. The baseline is a plain process, spawned in the same run.
 */
import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtempDisposable, readdir, readFile, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { PrepareAction } from '../src/model/task.ts'
import { runtimes } from '../src/node/sandbox/runtimes/index.ts'
import type { Runtime, Sandbox, SandboxSpec } from '../src/node/sandbox/runtimes/runtime.ts'
import { WarmStarts } from '../src/node/sandbox/prepare/warm-start.ts'
import { findApptainer } from '../test/support/apptainer.ts'
import { startPodman } from '../test/support/podman.ts'
import type { BenchOptions } from './run.ts'
import { percentile } from './support/stats.ts'
import { printTitledTable } from './support/table.ts'

const STARTS = 20
const EXECS = 40
/** Pause between commands of an agent; longer than the creation of the next namespace. */
const PAUSE_MS = 100
const AT_ONCE = 100
/** Sandboxes that start at the same time. */
const WIDTH = 4
/** No new measurement starts after this time. */
const PATIENCE_MS = 25_000
const CHECKOUT_BYTES = 200 * 1024 * 1024
const CHECKOUT_FILES = 2000
const DOOR_PORT = 18_080

/** One row of each table: a runtime and its requirements. */
interface Party {
  kind: string
  /** Its further config, and the image of its sandboxes where it needs one; or the reason why it is omitted. */
  prepare?(): Promise<Provision | string>
}

interface Provision extends AsyncDisposable {
  config: Readonly<Record<string, unknown>>
  image?: string
  /** Ancestor processes of its sandboxes, where these are not children of this process. */
  isRelated?(commandLine: string): boolean
}

const PARTIES: readonly Party[] = [
  { kind: 'local' },
  { kind: 'bubblewrap' },
  { kind: 'docker', prepare: provideDocker },
  { kind: 'apptainer', prepare: provideApptainer },
]

/** Podman's service, as in the tests. */
async function provideDocker(): Promise<Provision | string> {
  const podman = await startPodman()
  if (typeof podman === 'string') return podman
  const { socket, image } = podman
  return {
    config: { socket, pull: 'never', startsPerSecond: 1000 },
    image,
    // Every container has an orphaned helper process whose arguments contain the folder of the service.
    isRelated: (commandLine) => commandLine.includes(dirname(socket)),
    [Symbol.asyncDispose]: () => podman[Symbol.asyncDispose](),
  }
}

/** The installed program, or the one that the tests fetched. */
async function provideApptainer(): Promise<Provision | string> {
  const apptainer = findApptainer()
  if (typeof apptainer === 'string') return apptainer
  const { program, image } = apptainer
  return { config: { program }, image, [Symbol.asyncDispose]: async () => apptainer[Symbol.dispose]() }
}

interface Subject {
  runtime: Runtime
  provision: Provision
}

interface Measured {
  kind: string
  starts: number[]
  spaced: number[]
  backToBack: number[]
  crowd: Crowd
  cold: number
  warm: number[]
}

interface Crowd {
  count: number
  startMs: number
  stopMs: number
  /** Proportional set size: shared memory is divided among its processes. */
  pssBytes: number
}

export async function benchSandbox({ long }: BenchOptions): Promise<void> {
  await using scratch = await mkdtempDisposable(join(tmpdir(), 'polar-bench-sandbox-'))
  const dir = scratch.path
  const checkout = join(dir, 'checkout')
  await makeCheckout(checkout)
  const spawns = await measureSpawns()
  const all: Measured[] = []
  for (const party of PARTIES.filter(({ kind }) => runtimes.kinds.includes(kind))) {
    const measured = await measureParty(party, { dir: join(dir, party.kind), checkout, long })
    if (typeof measured === 'string') console.log(`${party.kind} is omitted: ${measured}`)
    else all.push(measured)
  }
  print(spawns, all)
}

// --- measuring -------------------------------------------------------------------------------------------------------

async function measureParty(
  { kind, prepare }: Party,
  { dir, checkout, long }: { dir: string; checkout: string; long: boolean },
): Promise<Measured | string> {
  const provided = await (prepare ?? provideNothing)()
  if (typeof provided === 'string') return provided
  await using provision = provided
  await using runtime = runtimes.create(runtimes.config.parse({ kind, ...provision.config }), { dir, now: Date.now })
  const checked = await runtime.check(AbortSignal.timeout(30_000))
  return checked.isUsable ? await measure({ runtime, provision }, checkout, long) : checked.reason
}

async function provideNothing(): Promise<Provision> {
  return { config: {}, async [Symbol.asyncDispose]() {} }
}

async function measure(subject: Subject, checkout: string, long: boolean): Promise<Measured> {
  const starts: number[] = []
  for (const _ of rounds(long ? STARTS * 5 : STARTS)) {
    const began = performance.now()
    await using sandbox = await start(subject)
    await runTrue(sandbox)
    starts.push(performance.now() - began)
  }
  await using sandbox = await start(subject)
  const [spaced, backToBack] = [await timeExecs(sandbox, PAUSE_MS), await timeExecs(sandbox, 0)]
  const crowd = await measureCrowd(subject)
  const prepared = await measurePreparing(subject, checkout)
  return { kind: subject.runtime.kind, starts, spaced, backToBack, crowd, ...prepared }
}

async function timeExecs(sandbox: Sandbox, pauseMs: number): Promise<number[]> {
  const times: number[] = []
  for (const _ of rounds(EXECS)) {
    await sleep(pauseMs)
    const began = performance.now()
    await runTrue(sandbox)
    times.push(performance.now() - began)
  }
  return times
}

async function measureCrowd(subject: Subject): Promise<Crowd> {
  const before = await pssOf(subject)
  const sandboxes: Sandbox[] = []
  const deadline = performance.now() + PATIENCE_MS
  const began = performance.now()
  let begun = 0
  const startSome = async (): Promise<void> => {
    while (begun < AT_ONCE && performance.now() < deadline) {
      begun += 1
      sandboxes.push(await start(subject))
    }
  }
  await Promise.all(Array.from({ length: WIDTH }, startSome))
  const startMs = performance.now() - began
  await sleep(500)
  const added = (await pssOf(subject)) - before
  const stopping = performance.now()
  await Promise.all(sandboxes.map((sandbox) => sandbox.stop()))
  const stopMs = performance.now() - stopping
  return { count: sandboxes.length, startMs, stopMs, pssBytes: added / sandboxes.length }
}

async function measurePreparing(subject: Subject, checkout: string): Promise<Pick<Measured, 'cold' | 'warm'>> {
  const warmStarts = new WarmStarts(subject.runtime)
  // An install without a network: writes eight thousand files and reads all of them.
  const install = `mkdir installed && cd installed && perl -e 'for (1..8000) { open(F, ">", $_); print F "x" x 5000, $_, rand }' && sha256sum * > ../sums && tar -cz . | sha256sum`
  const actions = [
    { type: 'upload_dir', source: checkout, target: 'checkout' },
    { type: 'exec', command: install },
  ].map((action) => PrepareAction.parse(action))
  const prepare = async (): Promise<number> => {
    const began = performance.now()
    const { sandbox, isWarm } = await warmStarts.start(toSpec(subject), actions, AbortSignal.timeout(60_000))
    await runTrue(sandbox)
    const time = performance.now() - began
    await sandbox.stop()
    return isWarm ? time : -time
  }
  const cold = -(await prepare())
  const warm: number[] = []
  for (const _ of rounds(5)) warm.push(await prepare())
  return { cold, warm }
}

async function measureSpawns(): Promise<number[]> {
  const times: number[] = []
  for (const _ of rounds(EXECS)) {
    const began = performance.now()
    await once(spawn('true', { stdio: ['pipe', 'pipe', 'pipe'] }), 'close')
    times.push(performance.now() - began)
  }
  return times
}

function* rounds(count: number): Generator<void> {
  const deadline = performance.now() + PATIENCE_MS
  for (let round = 0; round < count && performance.now() < deadline; round += 1) yield
}

let started = 0

/** With a sandbox socket, as every session has one. */
function toSpec({ runtime, provision: { image } }: Subject): SandboxSpec {
  return {
    id: `bench-${process.pid}-${(started += 1)}`,
    ...(image !== undefined && { image }),
    workdir: '/workspace',
    env: {},
    limits: {},
    network: { kind: runtime.capabilities.networks.includes('none') ? 'none' : 'open' },
    socket: { port: DOOR_PORT, accept: (socket) => socket.destroy() },
    mounts: [],
    labels: {},
    leaseUntil: Date.now() + 600_000,
  }
}

function start(subject: Subject): Promise<Sandbox> {
  return subject.runtime.start(toSpec(subject), AbortSignal.timeout(60_000))
}

async function runTrue(sandbox: Sandbox): Promise<void> {
  const execution = await sandbox.exec({ command: ['true'], leftovers: 'end', timeoutMs: 30_000 })
  const { exitCode } = await execution.result
  if (exitCode !== 0) throw new Error(`true ended with ${exitCode}`)
}

/** Memory of all descendants of this process, or of a process of the sandboxes, without this process. */
async function pssOf({ provision }: Subject): Promise<number> {
  const parents = new Map<number, number>()
  const related = new Set([process.pid])
  for (const name of (await readdir('/proc')).filter((each) => /^\d+$/.test(each))) {
    const status = await readFile(`/proc/${name}/status`, 'latin1').catch(() => '')
    const commandLine = await readFile(`/proc/${name}/cmdline`, 'latin1').catch(() => '')
    parents.set(Number(name), Number(/^PPid:\s+(\d+)/m.exec(status)?.[1] ?? 0))
    if (provision.isRelated?.(commandLine) === true) related.add(Number(name))
  }
  const isOurs = (pid: number): boolean => pid !== process.pid && (related.has(pid) || isBelow(parents.get(pid) ?? 0))
  const isBelow = (pid: number): boolean => related.has(pid) || (pid > 1 && isBelow(parents.get(pid) ?? 0))
  let kilobytes = 0
  for (const pid of [...parents.keys()].filter(isOurs)) {
    const text = await readFile(`/proc/${pid}/smaps_rollup`, 'latin1').catch(() => '')
    kilobytes += Number(/^Pss:\s+(\d+)/m.exec(text)?.[1] ?? 0)
  }
  return kilobytes * 1024
}

async function makeCheckout(root: string): Promise<void> {
  const content = Buffer.alloc(CHECKOUT_BYTES / CHECKOUT_FILES, 'const answer = 42\n')
  for (let index = 0; index < CHECKOUT_FILES; index += 1) {
    const folder = join(root, `package-${index % 50}`)
    if (index < 50) await mkdir(folder, { recursive: true })
    await writeFile(join(folder, `file-${index}.ts`), content)
  }
}

// --- printing --------------------------------------------------------------------------------------------------------

function print(spawns: readonly number[], all: readonly Measured[]): void {
  const base = percentile(spawns, 50)
  const row = (name: string, times: readonly number[]): string[] => [
    name,
    ms(percentile(times, 50)),
    ms(percentile(times, 95)),
    `${(percentile(times, 50) / base).toFixed(1)} ×`,
  ]
  printTitledTable('a command that does nothing', [
    ['what', 'p50', 'p95', 'of a spawn'],
    row('plain spawn', spawns),
    ...all.flatMap(({ kind, starts, spaced, backToBack }) => [
      row(`${kind}: start to end of first exec`, starts),
      row(`${kind}: exec every ${PAUSE_MS} ms`, spaced),
      row(`${kind}: exec back to back`, backToBack),
    ]),
  ])
  printTitledTable(`many at once, ${WIDTH} being started at a time`, [
    ['runtime', 'sandboxes', 'all up after', 'each', 'memory each', 'all ended after'],
    ...all.map(({ kind, crowd: { count, startMs, stopMs, pssBytes } }) => [
      kind,
      String(count),
      ms(startMs),
      ms(startMs / count),
      `${(pssBytes / 1024 ** 2).toFixed(1)} MB`,
      ms(stopMs),
    ]),
  ])
  printTitledTable('ready for a task with a checkout of 200 MB and an install step', [
    ['runtime', 'cold', 'warm p50', 'warm of cold'],
    ...all.map(({ kind, cold, warm }) => {
      const typical = percentile(warm, 50)
      return [kind, ms(cold), ms(typical), `${((typical / cold) * 100).toFixed(1)} %`]
    }),
  ])
}

function ms(value: number): string {
  return `${value < 10 ? value.toFixed(1) : value.toFixed(0)} ms`
}
