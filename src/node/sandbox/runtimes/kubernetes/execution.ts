import { randomUUID } from 'node:crypto'
import { constants } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { RolloutError } from '../../../../model/failure.ts'
import { renderExec, type CompleteExecSpec } from '../../linux/process/render-exec.ts'
import { Spool } from '../../linux/process/spool.ts'
import type { ExecResult, Execution } from '../runtime.ts'
import { ClusterError, type Cluster } from './cluster.ts'
import { openExec, runTool, type ExecStream, type ContainerTarget } from './exec.ts'
import { MarkedMessages } from './marked-messages.ts'
import type { PodProcesses } from './pod-processes.ts'
import { fetchScript, launchScript, sweepScript } from './scripts.ts'

const OUTPUT_BYTES = 16 * 1024 * 1024
const READY_MS = 60_000
/** One that was brought in at the wrong moment, or whose server was restarted just then, is brought in again. */
const ATTEMPTS = 3
/** How long what stays behind may still be heard, once the first process is gone. */
const LEAVE_MS = 100
const FETCH_MS = 1000
/** An API server that is being replaced answers again within minutes; until then nobody knows how a command ended. */
const UNREACHABLE_MS = 300_000
/** For a command's end over its own connection; after that it is done over another, and what it wrote is fetched. */
const END_MS = 5000
/** For all of a command's processes to be ended; a busy machine is no reason to give the pod up. */
const SWEEP_MS = 60_000

export interface PodExecutionDeps {
  cluster: Cluster
  target: ContainerTarget
  processes: PodProcesses
  id: string
  /** For what it writes. */
  folder: string
  /** Whether the sandbox is being stopped, so that nothing is worth asking for any more. */
  isStopping(): boolean
  /** Takes the whole pod away, when nothing else helps. */
  abandon(): Promise<void>
  /** Whether the pod itself ran out of memory and is gone with it. */
  ranOutOfMemory(): Promise<boolean>
  now(): number
}

type Ending = Pick<ExecResult, 'exitCode' | 'signal'> & { isOutOfMemory?: boolean }

const KILLED: Ending = { exitCode: null, signal: 'SIGKILL' }

export async function startInPod(spec: CompleteExecSpec, deps: PodExecutionDeps): Promise<Execution> {
  const maxBytes = spec.outputBytes ?? OUTPUT_BYTES
  const spools = {
    stdout: await Spool.create(join(deps.folder, `${deps.id}.stdout`), maxBytes),
    stderr: await Spool.create(join(deps.folder, `${deps.id}.stderr`), maxBytes),
  }
  const command = new Command(spec, deps, spools, maxBytes)
  try {
    await command.start()
  } catch (error) {
    await Promise.all([spools.stdout.end(), spools.stderr.end()])
    throw error
  }
  const startedAt = deps.now()
  let isTimedOut = false
  const timer =
    spec.timeoutMs === undefined
      ? undefined
      : setTimeout(() => {
          isTimedOut = true
          void command.end()
        }, spec.timeoutMs)

  async function run(): Promise<ExecResult> {
    const ending = await command.ending
    clearTimeout(timer)
    const durationMs = deps.now() - startedAt
    if (spec.leftovers === 'end' || isTimedOut) await command.end()
    else await command.leave()
    await Promise.all([spools.stdout.end(), spools.stderr.end()])
    return {
      ...ending,
      isTimedOut,
      stdoutBytes: spools.stdout.bytes,
      stderrBytes: spools.stderr.bytes,
      durationMs,
    }
  }

  const result = run()
  return {
    id: deps.id,
    result,
    output: (stream, from = 0) => spools[stream].read(from),
    signal: (name) => command.signal(name),
    async kill() {
      await command.end()
      await result
    },
  }
}

/** One command in a pod, over one connection as long as that lasts and over many short ones after that. */
class Command {
  /** How its first process ended. Never rejects. */
  readonly ending: Promise<Ending>
  readonly #spec: CompleteExecSpec
  readonly #deps: PodExecutionDeps
  readonly #spools: Record<'stdout' | 'stderr', Spool>
  readonly #maxBytes: number
  readonly #mark = new MarkedMessages(`polar-${randomUUID()}`)
  /** Bytes of the command's own, as it wrote them; where to go on after a connection broke. */
  readonly #got = { stdout: 0, stderr: 0 }
  #settle!: (ending: Ending) => void
  #stream: ExecStream | undefined
  #waiter = 0
  #first = 0
  #oomBefore: number | undefined
  #isOver = false
  #ended: Promise<void> | undefined
  #kept: ((pids: number[]) => void) | undefined

  constructor(
    spec: CompleteExecSpec,
    deps: PodExecutionDeps,
    spools: Record<'stdout' | 'stderr', Spool>,
    maxBytes: number,
  ) {
    this.#spec = spec
    this.#deps = deps
    this.#spools = spools
    this.#maxBytes = maxBytes
    this.ending = new Promise((resolve) => (this.#settle = resolve))
  }

  async start(): Promise<void> {
    for (let attempt = 1; ; attempt += 1) {
      const failure = await this.#launch()
      if (failure === undefined) return
      if (attempt === ATTEMPTS || this.#deps.isStopping())
        throw new RolloutError('runtime.gone', `Nothing can be started in the sandbox: ${failure}`)
    }
  }

  async signal(name: NodeJS.Signals): Promise<void> {
    if (this.#isOver) return
    const short = name.slice('SIG'.length)
    if (this.#stream !== undefined) return this.#stream.write(`signal ${short}\n`)
    await this.#tool(['/bin/sh', '-c', 'kill -s "$1" "$2"', 'sh', short, String(this.#first)])
  }

  /** Ends all of it; resolves when nothing is left and all it wrote is here. */
  end(): Promise<void> {
    this.#ended ??= this.#end()
    return this.#ended
  }

  /** Its first process has ended; what it left behind may stay. */
  async leave(): Promise<void> {
    const { processes, id } = this.#deps
    const roots = processes.rootsBeside(id)
    let pids: number[] = []
    const stream = this.#stream
    if (stream !== undefined) {
      const kept = new Promise<number[]>((resolve) => (this.#kept = resolve))
      await stream.write(`leave ${roots.join(' ')}\n`)
      pids = await Promise.race([kept, stream.ended.then(() => [])])
      await Promise.race([stream.ended, sleep(LEAVE_MS)])
      await this.#take('stderr', this.#mark.rest())
      this.#isOver = true
      stream.close()
    } else {
      const { stdout } = await this.#tool(sweepTool('list', [this.#waiter], roots))
      pids = stdout.trim().split(' ').filter(Boolean).map(Number)
    }
    processes.leave(id, pids)
  }

  async #end(): Promise<void> {
    const { processes, id } = this.#deps
    const roots = processes.rootsBeside(id)
    const stream = this.#stream
    if (stream !== undefined) {
      void stream.write(`end ${roots.join(' ')}\n`)
      const end = await Promise.race([stream.ended, sleep(END_MS, undefined, { ref: false })])
      if (end?.kind === 'exit' && end.exitCode === 0) return this.#finish()
      stream.close()
      this.#mark.rest()
    }
    if (!this.#deps.isStopping()) {
      // Something forks faster than it can be ended, or lets nothing of ours be started.
      if (!(await this.#sweep(roots))) await this.#deps.abandon()
      else await this.#fetch()
    }
    await this.#finish()
  }

  async #sweep(roots: readonly number[]): Promise<boolean> {
    for (let attempt = 1; attempt <= ATTEMPTS && !this.#deps.isStopping(); attempt += 1) {
      const { exitCode } = await this.#tool(sweepTool('kill', [this.#waiter], roots))
      if (exitCode === 0) return true
      await sleep(FETCH_MS, undefined, { ref: false })
    }
    return false
  }

  async #finish(): Promise<void> {
    await this.#take('stderr', this.#mark.rest())
    this.#isOver = true
    this.#deps.processes.close(this.#deps.id)
    this.#settle(KILLED)
  }

  /** Brings it in; resolves once it runs, with the reason when it does not. */
  async #launch(): Promise<string | undefined> {
    const { cluster, target, processes, id } = this.#deps
    const name = `${id}-${randomUUID().slice(0, 8)}`
    const script = ['/bin/sh', '-c', launchScript(), 'sh', name, String(this.#maxBytes), ...processes.takeFinished()]
    const start = Buffer.from(toStartScript(this.#spec, this.#mark.text))
    const input = Buffer.from(this.#spec.stdin ?? '')
    let said = ''
    let complaint = ''
    let toReady!: (line: string) => void
    const ready = new Promise<string>((resolve) => (toReady = resolve))
    let isReady = false
    const stream = await openExec(
      cluster,
      target,
      script,
      {
        stdout: async (data) => {
          if (isReady) return this.#take('stdout', data)
          said += data.toString('latin1')
          const line = /^ready .*\n/m.exec(said)
          if (line === null) {
            if (said === 'send\n') void stream.write(input)
            return
          }
          isReady = true
          toReady(line[0])
          const rest = Buffer.from(said.slice(line.index + line[0].length), 'latin1')
          if (rest.length > 0) await this.#take('stdout', rest)
        },
        stderr: async (data) => {
          if (!isReady) complaint = (complaint + data.toString('latin1')).slice(-500)
          await this.#takeStderr(data)
        },
      },
      AbortSignal.timeout(READY_MS),
    )
    void stream.write(`${start.length} ${input.length}\n`)
    void stream.write(start)
    const line = await Promise.race([
      ready,
      stream.ended.then((end) => end),
      sleep(READY_MS, { kind: 'lost', message: 'it took too long' } as const, { ref: false }),
    ])
    if (typeof line !== 'string') {
      stream.close()
      this.#got.stderr = 0
      const reason = line.kind === 'exit' ? `a shell ended with ${line.exitCode}` : line.message
      return complaint.trim() || reason
    }
    const [, out, err, waiter, first, oom] = line.trim().split(' ').map(Number)
    this.#waiter = waiter!
    this.#first = first!
    this.#oomBefore = oom
    processes.open(id, { name, waiter: waiter!, recorders: [out!, err!] })
    this.#stream = stream
    void stream.ended.then(() => this.#goOn(stream))
    return undefined
  }

  /** The connection is gone; when the command is not, it is asked for what it did. */
  async #goOn(stream: ExecStream): Promise<void> {
    if (this.#stream === stream) this.#stream = undefined
    // What was held back is not counted yet, and comes again.
    if (this.#ended === undefined) this.#mark.rest()
    let unreachableSince: number | undefined
    while (!this.#isOver && this.#ended === undefined) {
      const outcome = this.#deps.isStopping() ? 'gone' : await this.#fetch()
      if (outcome === 'ended') return
      if (outcome === 'gone') return this.#vanish()
      if (outcome === 'unreachable') {
        unreachableSince ??= this.#deps.now()
        if (this.#deps.now() - unreachableSince > UNREACHABLE_MS) return this.#vanish()
      } else unreachableSince = undefined
      await sleep(FETCH_MS, undefined, { ref: false })
    }
  }

  async #vanish(): Promise<void> {
    this.#settle({ ...KILLED, ...((await this.#deps.ranOutOfMemory()) && { isOutOfMemory: true }) })
  }

  async #fetch(): Promise<'running' | 'ended' | 'gone' | 'unreachable'> {
    const { cluster, target, processes, id } = this.#deps
    const { stdout, stderr } = this.#got
    const args = [processes.nameOf(id), this.#mark.text, stdout, stderr, this.#waiter].map(String)
    try {
      const stream = await openExec(
        cluster,
        target,
        ['/bin/sh', '-c', fetchScript(), 'sh', ...args],
        { stdout: (data) => this.#take('stdout', data), stderr: (data) => this.#takeStderr(data) },
        AbortSignal.timeout(READY_MS),
      )
      const end = await stream.ended
      if (end.kind === 'exit' && end.exitCode === 66) return 'gone'
      if (end.kind !== 'exit' || end.exitCode !== 0) return 'unreachable'
      return this.#mark.last?.startsWith('ended exit') === true || this.#mark.last?.startsWith('ended signal') === true
        ? 'ended'
        : 'running'
    } catch (error) {
      // A pod that has ended takes no commands; one that was removed is not found.
      return error instanceof ClusterError && error.status < 500 ? 'gone' : 'unreachable'
    }
  }

  async #take(name: 'stdout' | 'stderr', data: Buffer): Promise<void> {
    this.#got[name] += data.length
    // A full disk of ours must not stop the command; the count shows that something is missing.
    if (!this.#isOver && data.length > 0) await this.#spools[name].write(data).catch(() => {})
  }

  async #takeStderr(data: Buffer): Promise<void> {
    const { content, words } = this.#mark.take(data)
    await this.#take('stderr', content)
    for (const said of words) {
      const [kind, ...rest] = said.split(' ').filter(Boolean)
      if (kind === 'kept') this.#kept?.(rest.map(Number))
      if (kind !== 'ended' || rest.length < 2) continue
      const [how, code, oom] = rest
      const isOutOfMemory =
        oom === undefined || this.#oomBefore === undefined ? undefined : Number(oom) > this.#oomBefore
      this.#settle({ ...toEnding(how!, Number(code)), ...(isOutOfMemory !== undefined && { isOutOfMemory }) })
    }
  }

  async #tool(command: readonly string[]): Promise<{ exitCode: number; stdout: string }> {
    const { cluster, target } = this.#deps
    return runTool(cluster, target, command, { signal: AbortSignal.timeout(SWEEP_MS) }).catch(() => ({
      exitCode: 255,
      stdout: '',
    }))
  }
}

export function sweepTool(mode: 'kill' | 'list', doomed: readonly number[], roots: readonly number[]): string[] {
  return ['/bin/sh', '-c', sweepScript(), 'sh', mode, doomed.join(' '), ...roots.map(String)]
}

/** What comes in on the input, not as arguments: these are in the server's logs, and in everybody's list of processes. */
function toStartScript(spec: CompleteExecSpec, mark: string): string {
  return `mark=${mark}; become() { ${renderExec(spec)}; }`
}

function toEnding(how: string, code: number): Ending {
  const found = how === 'signal' && Object.entries(constants.signals).find(([, number]) => code === 128 + number)
  return found ? { exitCode: null, signal: found[0] as NodeJS.Signals } : { exitCode: code, signal: null }
}
