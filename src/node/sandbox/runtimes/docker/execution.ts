import { randomUUID } from 'node:crypto'
import { constants } from 'node:os'
import type { Duplex } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { RolloutError } from '../../../../model/failure.ts'
import { ExecRecord } from '../../linux/process/exec-record.ts'
import type { CompleteExecSpec } from '../../linux/process/render-exec.ts'
import type { ExecResult, Execution } from '../runtime.ts'
import type { ContainerEngine } from './container-engine.ts'
import { readFrames, type OutputFrame } from './frames.ts'
import { createExec, inspectExec, startExec } from './inside.ts'
import type { CommandProcesses, ProcessTracker } from './process-tracker.ts'

/** How long output may still come once every process is gone. */
const DRAIN_MS = 2000
/** How long it may come from what stays behind, once the first process is gone. */
const LEAVE_MS = 100
/** For the shell that leads to the command to say that it is there. */
const GATE_MS = 30_000
/** An engine that was restarted answers again after a while. */
const INSPECT_ATTEMPTS = 20

/**
 * The engine gives one number, in which a signal looks like an exit code of 128 and more. A shell knows better: it says
 * something, to its own stderr, when a signal ended what it waits for (but for SIGINT and SIGPIPE). So one waits outside
 * the command, and adds a mark to the command's stderr after a code that is none of a signal's.
 */
const WAITER = [
  '/bin/sh',
  '-c',
  'exec 3>&1 4>&2; said=$(exec 2>&1; (exec >&3 2>&4 3>&- 4>&-; exec "$@"); echo "=$?"); code=${said##*=}; [ "$code" -gt 128 ] && [ "$said" = "=$code" ] && printf %s "$POLAR_MARK" >&4; exit "$code"',
  'sh',
]

export interface ContainerExecutionDeps {
  engine: ContainerEngine
  containerId: string
  user: string
  id: string
  /** For what it writes. */
  folder: string
  tracker: ProcessTracker
  now(): number
}

export async function startInContainer(spec: CompleteExecSpec, deps: ContainerExecutionDeps): Promise<Execution> {
  const { engine, tracker, id } = deps
  const record = await ExecRecord.create(spec, { ...deps, countOutOfMemory: () => tracker.countOutOfMemory() })
  const mark = new MarkFilter(`polar-exit-${randomUUID()}`)
  const { execId, socket, frames, processes } = await bringIn(spec, mark, deps).catch(async (error: unknown) => {
    await record.end()
    throw error
  })
  record.begin(() => void kill())
  socket.write('\n')
  socket.end(spec.stdin)

  let isFinished = false
  const copying = copy()
  async function copy(): Promise<void> {
    try {
      for await (const { stream, data } of frames) {
        // What comes later is thrown away, so that nobody who still writes has to stop.
        if (isFinished) continue
        // A full disk of ours must not stop the command; the count shows that something is missing.
        await record.spools[stream].write(stream === 'stderr' ? mark.take(data) : data).catch(() => {})
      }
    } catch {
      // The connection broke. How the command ended is still known, what it wrote since is not.
    }
  }

  async function kill(): Promise<void> {
    await processes.close().catch(() => {})
    await result
  }

  async function run(): Promise<ExecResult> {
    await ended(processes, copying)
    record.stopClock()
    if (spec.leftovers === 'end' || record.isTimedOut) {
      await processes.close().catch(() => {})
      await Promise.race([copying, sleep(DRAIN_MS)])
    } else {
      await processes.leave()
      await Promise.race([copying, sleep(LEAVE_MS)])
    }
    isFinished = true
    await record.spools.stderr.write(mark.rest()).catch(() => {})
    const ending = await endingOf(engine, execId, mark)
    await record.end()
    return record.toResult(ending)
  }

  const result = run()
  return {
    id,
    result,
    output: (stream, from = 0) => record.spools[stream].read(from),
    kill,
    signal: (name) => processes.signal(name),
  }
}

interface Begun {
  execId: string
  socket: Duplex
  frames: AsyncGenerator<OutputFrame, void, undefined>
  processes: CommandProcesses
}

/** Up to the point where only a word is missing. */
async function bringIn(
  { command, cwd, env, leftovers }: CompleteExecSpec,
  mark: MarkFilter,
  { engine, containerId, user, tracker }: ContainerExecutionDeps,
): Promise<Begun> {
  using _ = await tracker.expect()
  const values = Object.entries(env).map(([name, value], index) => [`POLAR_ENV_${index}`, `${name}=${value}`] as const)
  const execId = await createExec(engine, containerId, {
    command: [...WAITER, ...gate(values.map(([name]) => name)), cwd, ...command],
    env: { POLAR_MARK: mark.text, ...Object.fromEntries(values) },
    user,
  })
  const socket = await startExec(engine, execId)
  // A command that does not read its input to the end is no failure.
  socket.on('error', () => {})
  const frames = readFrames(socket)
  const timer = setTimeout(() => socket.destroy(), GATE_MS)
  try {
    const insidePid = await readGate(frames)
    const processes = await tracker.open({ execId, insidePid, mayLeave: leftovers === 'keep' })
    return { execId, socket, frames, processes }
  } catch (error) {
    // Whoever waits at the gate reads the end of its input, and its command is never known to anybody.
    socket.destroy()
    throw error
  } finally {
    clearTimeout(timer)
  }
}

/**
 * Says its number, waits until its processes is ready, and becomes the command. The environment comes under other names,
 * because names such as LD_PRELOAD would work on the shells as well.
 */
function gate(names: readonly string[]): string[] {
  const pairs = names.map((name) => `"$${name}"`).join(' ')
  const script = `echo "$$"; IFS= read -r go || exit 125; cd -- "$1" || exit 126; shift; umask 022; exec env -i ${pairs} "$@"`
  return ['/bin/sh', '-c', script, 'sh']
}

/** The number of the process that waits, in the container's own count. */
async function readGate(frames: AsyncGenerator<OutputFrame, void, undefined>): Promise<number> {
  let stdout = ''
  let stderr = ''
  for (;;) {
    const { value, done } = await frames.next()
    if (done === true) break
    if (value.stream === 'stderr') stderr = (stderr + value.data.toString('latin1')).slice(-500)
    else stdout += value.data.toString('latin1')
    if (stdout.endsWith('\n')) return Number.parseInt(stdout, 10)
  }
  const reason = stderr.trim() || 'no /bin/sh that works is in its image'
  throw new RolloutError('runtime.gone', `Nothing can be started in the sandbox: ${reason}`)
}

/** The end of the output tells, unless somebody else still holds it, or the command let go of it early. */
async function ended(processes: CommandProcesses, copying: Promise<void>): Promise<void> {
  let isDrained = false
  let wait = 50
  const drained = copying.then(() => {
    isDrained = true
    wait = 2
  })
  while (await processes.isRunning().catch(() => false)) {
    const rest = sleep(wait, undefined, { ref: false })
    await (isDrained ? rest : Promise.race([drained, rest]))
    wait = Math.min(wait * 2, 500)
  }
}

async function endingOf(
  engine: ContainerEngine,
  execId: string,
  mark: MarkFilter,
): Promise<Pick<ExecResult, 'exitCode' | 'signal'>> {
  for (let attempt = 0; attempt < INSPECT_ATTEMPTS; attempt += 1) {
    const known = await inspectExec(engine, execId).catch(() => undefined)
    if (known?.Running === false && known.ExitCode != null) return toEnding(known.ExitCode, mark.isSeen)
    await sleep(Math.min(5 * 2 ** attempt, 250))
  }
  // The container has gone and took with it what the engine knew.
  return { exitCode: null, signal: 'SIGKILL' }
}

function toEnding(code: number, isExit: boolean): Pick<ExecResult, 'exitCode' | 'signal'> {
  const found = isExit ? undefined : Object.entries(constants.signals).find(([, number]) => code === 128 + number)
  return found === undefined ? { exitCode: code, signal: null } : { exitCode: null, signal: found[0] as NodeJS.Signals }
}

/** Finds a word in a stream, however it was cut, and takes it out. */
class MarkFilter {
  readonly text: string
  isSeen = false
  readonly #bytes: Buffer
  /** What may be its beginning. */
  #held = Buffer.alloc(0)

  constructor(text: string) {
    this.text = text
    this.#bytes = Buffer.from(text)
  }

  take(data: Buffer): Buffer {
    const all = this.#held.length === 0 ? data : Buffer.concat([this.#held, data])
    const at = all.indexOf(this.#bytes)
    if (at >= 0) {
      this.isSeen = true
      this.#held = Buffer.alloc(0)
      return Buffer.concat([all.subarray(0, at), all.subarray(at + this.#bytes.length)])
    }
    let length = Math.min(all.length, this.#bytes.length - 1)
    while (length > 0 && !all.subarray(-length).equals(this.#bytes.subarray(0, length))) length -= 1
    this.#held = Buffer.from(all.subarray(all.length - length))
    return all.subarray(0, all.length - length)
  }

  /** What was its beginning only. */
  rest(): Buffer {
    const held = this.#held
    this.#held = Buffer.alloc(0)
    return held
  }
}
