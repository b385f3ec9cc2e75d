import { randomUUID } from 'node:crypto'
import { setTimeout as sleep } from 'node:timers/promises'
import { RolloutError } from '../../../../model/failure.ts'
import { ExecRecord, OUTPUT_BYTES, toEnding } from '../../linux/process/exec-record.ts'
import { MarkedMessages } from '../../linux/process/marked-messages.ts'
import { renderExec, type CompleteExecSpec } from '../../linux/process/render-exec.ts'
import type { Spool } from '../../linux/process/spool.ts'
import type { ExecResult, Execution } from '../runtime.ts'
import { ClusterError, type Cluster } from './cluster.ts'
import { openExec, runTool, type ExecStream, type ContainerTarget } from './exec.ts'
import type { PodProcesses } from './pod-processes.ts'
import { fetchScript, launchScript, sweepScript } from './scripts.ts'

const READY_MS = 60_000
/** Attempts to start a command, for example if the API server restarts. */
const ATTEMPTS = 3
/** Longest time to wait for output of remaining processes after the first process has ended. */
const LEAVE_MS = 100
const FETCH_MS = 1000
/** A replaced API server responds again within minutes; until then the state of a command is unknown. */
const UNREACHABLE_MS = 300_000
/**
 * Time limit for ending a command over its own connection; after that, another connection is used and the output is
 * fetched.
 */
const END_MS = 5000
/** Time limit for killing all processes of a command; long, because a busy machine is no reason to remove the pod. */
const SWEEP_MS = 60_000

export interface PodExecutionDeps {
  cluster: Cluster
  target: ContainerTarget
  processes: PodProcesses
  id: string
  /** Folder of the output files. */
  folder: string
  /** Whether the sandbox is being stopped, so that no request is useful any more. */
  isStopping(): boolean
  /** Removes the whole pod as the last resort. */
  abandon(): Promise<void>
  /** Whether the pod was ended for lack of memory. */
  ranOutOfMemory(): Promise<boolean>
  now(): number
}

type Ending = Pick<ExecResult, 'exitCode' | 'signal'> & { isOutOfMemory?: boolean }

const KILLED: Ending = { exitCode: null, signal: 'SIGKILL' }

export async function startInPod(spec: CompleteExecSpec, deps: PodExecutionDeps): Promise<Execution> {
  const record = await ExecRecord.create(spec, { ...deps, countOutOfMemory: async () => undefined })
  const command = new Command(spec, deps, record.spools)
  try {
    await command.start()
  } catch (error) {
    await record.end()
    throw error
  }
  record.begin(() => void command.end())

  async function run(): Promise<ExecResult> {
    const ending = await command.ending
    record.stopClock()
    if (spec.leftovers === 'end' || record.isTimedOut) await command.end()
    else await command.leave()
    await record.end()
    return { ...(await record.toResult(ending)), isOutOfMemory: ending.isOutOfMemory }
  }

  const result = run()
  return {
    id: deps.id,
    result,
    output: (stream, from = 0) => record.spools[stream].read(from),
    signal: (name) => command.signal(name),
    async kill() {
      await command.end()
      await result
    },
  }
}

/** One command in a pod: over one connection while it lasts, then over many short ones. */
class Command {
  /** Exit status of the first process. Never rejects. */
  readonly ending: Promise<Ending>
  readonly #spec: CompleteExecSpec
  readonly #deps: PodExecutionDeps
  readonly #spools: Record<'stdout' | 'stderr', Spool>
  readonly #mark = new MarkedMessages(`polar-${randomUUID()}`)
  /** Bytes of the command's output that have arrived; offset after a connection broke. */
  readonly #got = { stdout: 0, stderr: 0 }
  #settle!: (ending: Ending) => void
  #stream: ExecStream | undefined
  #waiter = 0
  #first = 0
  #oomBefore: number | undefined
  #isOver = false
  #ended: Promise<void> | undefined
  #kept: ((pids: number[]) => void) | undefined

  constructor(spec: CompleteExecSpec, deps: PodExecutionDeps, spools: Record<'stdout' | 'stderr', Spool>) {
    this.#spec = spec
    this.#deps = deps
    this.#spools = spools
    this.ending = new Promise((resolve) => (this.#settle = resolve))
  }

  async start(): Promise<void> {
    for (let attempt = 1; ; attempt += 1) {
      const failure = await this.#launch()
      if (failure === undefined) return
      if (attempt === ATTEMPTS || this.#deps.isStopping())
        throw new RolloutError('runtime.gone', `Cannot start a command in the sandbox: ${failure}`)
    }
  }

  async signal(name: NodeJS.Signals): Promise<void> {
    if (this.#isOver) return
    const short = name.slice('SIG'.length)
    if (this.#stream !== undefined) return this.#stream.write(`signal ${short}\n`)
    await this.#tool(['/bin/sh', '-c', 'kill -s "$1" "$2"', 'sh', short, String(this.#first)])
  }

  /** Ends all processes; resolves when none is left and all output has arrived. */
  end(): Promise<void> {
    this.#ended ??= this.#end()
    return this.#ended
  }

  /** Called when the first process has ended and its remaining processes may stay. */
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
      await this.#append('stderr', this.#mark.rest())
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
      // Processes fork faster than they can be killed, or prevent our programs from starting.
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
    await this.#append('stderr', this.#mark.rest())
    this.#isOver = true
    this.#deps.processes.close(this.#deps.id)
    this.#settle(KILLED)
  }

  /** Starts the command; resolves when it runs, with the reason if it does not. */
  async #launch(): Promise<string | undefined> {
    const { cluster, target, processes, id } = this.#deps
    const name = `${id}-${randomUUID().slice(0, 8)}`
    const maxBytes = String(this.#spec.outputBytes ?? OUTPUT_BYTES)
    const script = ['/bin/sh', '-c', launchScript(), 'sh', name, maxBytes, ...processes.takeFinished()]
    const start = Buffer.from(toStartScript(this.#spec, this.#mark.text))
    const input = Buffer.from(this.#spec.stdin ?? '')
    let output = ''
    let stderrText = ''
    let toReady!: (line: string) => void
    const ready = new Promise<string>((resolve) => (toReady = resolve))
    let isReady = false
    const stream = await openExec(
      cluster,
      target,
      script,
      {
        stdout: async (data) => {
          if (isReady) return this.#append('stdout', data)
          output += data.toString('latin1')
          const line = /^ready .*\n/m.exec(output)
          if (line === null) {
            if (output === 'send\n') void stream.write(input)
            return
          }
          isReady = true
          toReady(line[0])
          const rest = Buffer.from(output.slice(line.index + line[0].length), 'latin1')
          if (rest.length > 0) await this.#append('stdout', rest)
        },
        stderr: async (data) => {
          if (!isReady) stderrText = (stderrText + data.toString('latin1')).slice(-500)
          await this.#appendStderr(data)
        },
      },
      AbortSignal.timeout(READY_MS),
    )
    void stream.write(`${start.length} ${input.length}\n`)
    void stream.write(start)
    const line = await Promise.race([
      ready,
      stream.ended.then((end) => end),
      sleep(READY_MS, { kind: 'lost', message: 'no response in time' } as const, { ref: false }),
    ])
    if (typeof line !== 'string') {
      stream.close()
      this.#got.stderr = 0
      const reason = line.kind === 'exit' ? `a shell ended with ${line.exitCode}` : line.message
      return stderrText.trim() || reason
    }
    const [, out, err, waiter, first, oom] = line.trim().split(' ').map(Number)
    this.#waiter = waiter!
    this.#first = first!
    this.#oomBefore = oom
    processes.open(id, { name, waiter: waiter!, recorders: [out!, err!] })
    this.#stream = stream
    void stream.ended.then(() => this.#pollAfterBreak(stream))
    return undefined
  }

  /** After the connection broke: fetches output and exit status of the command until it ends. */
  async #pollAfterBreak(stream: ExecStream): Promise<void> {
    if (this.#stream === stream) this.#stream = undefined
    // These bytes are not counted yet and will be fetched again.
    if (this.#ended === undefined) this.#mark.rest()
    let unreachableSince: number | undefined
    while (!this.#isOver && this.#ended === undefined) {
      const outcome = this.#deps.isStopping() ? 'gone' : await this.#fetch()
      if (outcome === 'ended') return
      if (outcome === 'gone') return this.#settleLost()
      if (outcome === 'unreachable') {
        unreachableSince ??= this.#deps.now()
        if (this.#deps.now() - unreachableSince > UNREACHABLE_MS) return this.#settleLost()
      } else unreachableSince = undefined
      await sleep(FETCH_MS, undefined, { ref: false })
    }
  }

  async #settleLost(): Promise<void> {
    this.#settle({ ...KILLED, isOutOfMemory: (await this.#deps.ranOutOfMemory()) || undefined })
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
        { stdout: (data) => this.#append('stdout', data), stderr: (data) => this.#appendStderr(data) },
        AbortSignal.timeout(READY_MS),
      )
      const end = await stream.ended
      if (end.kind === 'exit' && end.exitCode === 66) return 'gone'
      if (end.kind !== 'exit' || end.exitCode !== 0) return 'unreachable'
      return this.#mark.last?.startsWith('ended exit') === true || this.#mark.last?.startsWith('ended signal') === true
        ? 'ended'
        : 'running'
    } catch (error) {
      // The server rejects commands for a pod that has ended, and does not find a removed pod.
      return error instanceof ClusterError && error.status < 500 ? 'gone' : 'unreachable'
    }
  }

  async #append(name: 'stdout' | 'stderr', data: Buffer): Promise<void> {
    this.#got[name] += data.length
    // A full disk of this machine must not stop the command; the byte count shows that output is missing.
    if (!this.#isOver && data.length > 0) await this.#spools[name].write(data).catch(() => {})
  }

  async #appendStderr(data: Buffer): Promise<void> {
    const { content, messages } = this.#mark.extract(data)
    await this.#append('stderr', content)
    for (const output of messages) {
      const [kind, ...rest] = output.split(' ').filter(Boolean)
      if (kind === 'kept') this.#kept?.(rest.map(Number))
      if (kind !== 'ended' || rest.length < 2) continue
      const [how, code, oom] = rest
      const isOutOfMemory =
        oom === undefined || this.#oomBefore === undefined ? undefined : Number(oom) > this.#oomBefore
      this.#settle({ ...toEnding(Number(code), how === 'signal'), isOutOfMemory })
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

/** Sent as input, not as arguments, because arguments appear in the server's logs and in process lists. */
function toStartScript(spec: CompleteExecSpec, mark: string): string {
  return `mark=${mark}; become() { ${renderExec(spec)}; }`
}
