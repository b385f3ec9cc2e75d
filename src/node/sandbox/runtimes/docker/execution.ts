import { randomUUID } from 'node:crypto'
import type { Duplex } from 'node:stream'
import { setTimeout as sleep } from 'node:timers/promises'
import { RolloutError } from '../../../../model/failure.ts'
import { ExecRecord, toEnding } from '../../linux/process/exec-record.ts'
import { MarkedMessages } from '../../linux/process/marked-messages.ts'
import type { CompleteExecSpec } from '../../linux/process/render-exec.ts'
import type { ExecResult, Execution } from '../runtime.ts'
import type { ContainerEngine } from './container-engine.ts'
import { readFrames, type OutputFrame } from './frames.ts'
import { createExec, inspectExec, startExec } from './inside.ts'
import type { CommandProcesses, ProcessTracker } from './process-tracker.ts'

/** Longest time to wait for output after all processes have ended. */
const DRAIN_MS = 2000
/** Longest time to wait for output of remaining processes after the first process has ended. */
const LEAVE_MS = 100
/** Time limit for the shell that starts the command to report its pid. */
const READY_MS = 30_000
/** A restarted engine needs a while until it responds. */
const INSPECT_ATTEMPTS = 20

/**
 * The engine reports one number, in which a signal looks like an exit code above 128. A shell prints a message to its
 * own stderr if a signal ended its child (except for SIGINT and SIGPIPE). So a shell waits outside of the command and
 * appends a mark to the command's stderr after an exit code above 128 that is no signal.
 */
const WAITER = [
  '/bin/sh',
  '-c',
  'exec 3>&1 4>&2; report=$(exec 2>&1; (exec >&3 2>&4 3>&- 4>&-; exec "$@"); echo "=$?"); code=${report##*=}; [ "$code" -gt 128 ] && [ "$report" = "=$code" ] && printf %s "$POLAR_MARK" >&4; exit "$code"',
  'sh',
]

export interface ContainerExecutionDeps {
  engine: ContainerEngine
  containerId: string
  user: string
  id: string
  /** Folder of the output files. */
  folder: string
  tracker: ProcessTracker
}

export async function startInContainer(spec: CompleteExecSpec, deps: ContainerExecutionDeps): Promise<Execution> {
  const { engine, tracker, id } = deps
  const record = await ExecRecord.create(spec, { ...deps, countOutOfMemory: () => tracker.countOutOfMemory() })
  const mark = new MarkedMessages(`polar-exit-${randomUUID()}`)
  const { execId, socket, frames, processes } = await startShell(spec, mark, deps).catch(async (error: unknown) => {
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
        // Later output is dropped, so that a process that still writes does not block.
        if (isFinished) continue
        // A full disk of this machine must not stop the command; the byte count shows that output is missing.
        await record.spools[stream].write(stream === 'stderr' ? mark.extract(data).content : data).catch(() => {})
      }
    } catch {
      // The connection broke. The exit status is still known; output since then is lost.
    }
  }

  async function kill(): Promise<void> {
    await processes.close().catch(() => {})
    await result
  }

  async function run(): Promise<ExecResult> {
    await ended(processes, copying)
    record.stopClock()
    // Podman forgets a command some time after its end, and ending what it left behind can take longer than that.
    const early = await exitCodeOf(engine, execId)
    if (spec.leftovers === 'end' || record.isTimedOut) {
      await processes.close().catch(() => {})
      await Promise.race([copying, sleep(DRAIN_MS)])
    } else {
      await processes.leave()
      await Promise.race([copying, sleep(LEAVE_MS)])
    }
    isFinished = true
    await record.spools.stderr.write(mark.rest()).catch(() => {})
    const code = early ?? (await untilExitCode(engine, execId))
    const ending = code === undefined ? GONE : toEnding(code, mark.last === undefined)
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

interface StartedShell {
  execId: string
  socket: Duplex
  frames: AsyncGenerator<OutputFrame, void, undefined>
  processes: CommandProcesses
}

/** Starts the shell that waits for a line before it executes the command. */
async function startShell(
  { command, cwd, env, leftovers }: CompleteExecSpec,
  mark: MarkedMessages,
  { engine, containerId, user, tracker }: ContainerExecutionDeps,
): Promise<StartedShell> {
  using _ = await tracker.expect()
  const values = Object.entries(env).map(([name, value], index) => [`POLAR_ENV_${index}`, `${name}=${value}`] as const)
  const execId = await createExec(engine, containerId, {
    command: [...WAITER, ...waitingShell(values.map(([name]) => name)), cwd, ...command],
    env: { POLAR_MARK: `${mark.text} ;`, ...Object.fromEntries(values) },
    user,
  })
  const socket = await startExec(engine, execId)
  // A command may end without reading all of its input.
  socket.on('error', () => {})
  const frames = readFrames(socket)
  const timer = setTimeout(() => socket.destroy(), READY_MS)
  try {
    const insidePid = await readPid(frames)
    const processes = await tracker.open({ execId, insidePid, mayLeave: leftovers === 'keep' })
    return { execId, socket, frames, processes }
  } catch (error) {
    // The shell reads the end of its input and exits without executing the command.
    socket.destroy()
    throw error
  } finally {
    clearTimeout(timer)
  }
}

/**
 * Shell that prints its pid, waits for a line and executes the command. The environment is passed under other names,
 * because variables such as LD_PRELOAD would also affect the shells.
 */
function waitingShell(names: readonly string[]): string[] {
  const pairs = names.map((name) => `"$${name}"`).join(' ')
  const script = `echo "$$"; IFS= read -r go || exit 125; cd -- "$1" || exit 126; shift; umask 022; exec env -i ${pairs} "$@"`
  return ['/bin/sh', '-c', script, 'sh']
}

/** Pid of the waiting shell inside the container. */
async function readPid(frames: AsyncGenerator<OutputFrame, void, undefined>): Promise<number> {
  let stdout = ''
  let stderr = ''
  for (;;) {
    const { value, done } = await frames.next()
    if (done === true) break
    if (value.stream === 'stderr') stderr = (stderr + value.data.toString('latin1')).slice(-500)
    else stdout += value.data.toString('latin1')
    if (stdout.endsWith('\n')) return Number.parseInt(stdout, 10)
  }
  const reason = stderr.trim() || 'its image has no working /bin/sh'
  throw new RolloutError('runtime.gone', `Cannot start a command in the sandbox: ${reason}`)
}

/**
 * Waits for the end of the first process. The end of the output is a hint: another process may hold it open, or the
 * command may have closed it early.
 */
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

/** The ending of a command whose container is gone, and with it the engine's data about the command. */
const GONE = { exitCode: null, signal: 'SIGKILL' } as const

async function untilExitCode(engine: ContainerEngine, execId: string): Promise<number | undefined> {
  for (let attempt = 0; attempt < INSPECT_ATTEMPTS; attempt += 1) {
    const code = await exitCodeOf(engine, execId)
    if (code !== undefined) return code
    await sleep(Math.min(5 * 2 ** attempt, 250))
  }
  return undefined
}

/** Undefined while the command runs, and if the engine does not know it. */
async function exitCodeOf(engine: ContainerEngine, execId: string): Promise<number | undefined> {
  const known = await inspectExec(engine, execId).catch(() => undefined)
  return known?.Running === false ? (known.ExitCode ?? undefined) : undefined
}
