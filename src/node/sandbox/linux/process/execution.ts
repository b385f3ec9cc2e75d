import { readSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'
import { errnoOf } from '../../../../lib/fs/errno.ts'
import type { ExecResult, Execution } from '../../runtimes/runtime.ts'
import { ExecRecord, type RecordDeps } from './exec-record.ts'
import type { Pipe, Pipes } from './pipes.ts'
import { childrenOf, identify, signalProcess } from './processes.ts'
import { renderExec, type CompleteExecSpec } from './render-exec.ts'
import type { RemoteSpawn, SpawnedProcess } from './spawner.ts'
import type { Spool } from './spool.ts'

/** How long output may still come once every process is gone. */
const DRAIN_MS = 2000
/** More than a pipe holds, so that one that is being filled all the time comes to an end too. */
const PIPE_BYTES = 1024 * 1024

/** Where a command runs together with all that it starts, so that all of it can be ended. */
export interface CommandNamespace {
  shell: WaitingShell
  /** Ends all of it; resolves when nothing is left. Idempotent. */
  close(): Promise<void>
  /**
   * Takes it back for another command where the one that ended by itself left nothing at all; says whether. From then on
   * `close` does nothing.
   */
  reclaim?(): Promise<boolean>
}

/**
 * A shell that has gone all the way into the namespace and waits to be told what to become. Getting there takes most of the
 * time a command needs to start, so it is done ahead where it can be. The environment comes in the same way: what leads
 * inside runs with one of its own, because names such as LD_PRELOAD would work on it too, and arguments can be read by
 * everybody on the machine.
 */
export interface WaitingShell {
  child: SpawnedProcess
  ended: Promise<Pick<ExecResult, 'exitCode' | 'signal'>>
  /** Whether what was spawned only waits for the first process, which is then its child. */
  hasWaiter: boolean
  control: Pipe
  stdin: Pipe
  stdout: Pipe
  stderr: Pipe
}

/** `prefix` is what leads inside. */
export async function startShell(
  prefix: readonly string[],
  {
    spawn,
    pipes,
    env,
    hasWaiter,
  }: { spawn: RemoteSpawn; pipes: Pipes; env: Record<string, string>; hasWaiter: boolean },
): Promise<WaitingShell> {
  const [control, stdin] = [await pipes.toChild(), await pipes.toChild()]
  const [stdout, stderr] = [await pipes.fromChild(), await pipes.fromChild()]
  // Its input is what it is told; what will be the command's comes as the next free one.
  const [file, args] = prefix.length === 0 ? ['/bin/sh', []] : [prefix[0]!, [...prefix.slice(1), '/bin/sh']]
  const all = [control, stdout, stderr, stdin]
  const child = spawn(file, args, { stdio: all.map(({ childEnd }) => childEnd), env })
  const ended = exitOf(child)
  await Promise.race([new Promise((resolve) => child.once('spawn', resolve)), ended])
  for (const pipe of all) pipe.settle()
  for (const pipe of [control, stdin]) pipe.ours.on('error', () => pipe.ours.destroy())
  return { child, ended, hasWaiter, control, stdin, stdout, stderr }
}

/** Lets go of one that was never told anything. */
export function discardShell({ control, stdin, stdout, stderr }: WaitingShell): void {
  for (const pipe of [control, stdin, stdout, stderr]) pipe.ours.destroy()
}

export interface NamespaceExecutionDeps extends RecordDeps {
  namespace: CommandNamespace
}

export async function startInNamespace(spec: CompleteExecSpec, deps: NamespaceExecutionDeps): Promise<Execution> {
  const { namespace, id } = deps
  const { child, ended, hasWaiter, control, stdin, stdout, stderr } = namespace.shell
  const script = `${renderExec(spec)} <&3 3<&-\n`
  const record = await ExecRecord.create(spec, deps)
  record.begin(() => void kill())
  control.ours.end(script)
  stdin.ours.end(spec.stdin ?? '')
  const copies = [copy(stdout, record.spools.stdout), copy(stderr, record.spools.stderr)] as const

  async function kill(): Promise<void> {
    await namespace.close()
    // What led into the sandbox ends with its child; this is for one that had not got so far.
    child.kill('SIGKILL')
    await result
  }

  async function run(): Promise<ExecResult> {
    const ending = await ended
    record.stopClock()
    stdin.ours.destroy()
    const isReclaimed = !record.isTimedOut && ending.signal === null && (await namespace.reclaim?.()) === true
    if (isReclaimed || spec.leftovers === 'end' || record.isTimedOut) {
      await namespace.close()
      await Promise.race([Promise.all(copies.map(({ done }) => done)), sleep(DRAIN_MS, undefined, { ref: false })])
    }
    await Promise.all(copies.map((each) => each.finish()))
    return record.toResult(ending)
  }

  const result = run()
  return {
    id,
    result,
    output: (stream, from = 0) => record.spools[stream].read(from),
    kill,
    async signal(name) {
      if (child.pid === undefined || child.exitCode !== null || child.signalCode !== null) return
      const [inner] = hasWaiter ? await childrenOf(child.pid) : [child.pid]
      const ref = inner === undefined ? undefined : await identify(inner)
      if (ref !== undefined) await signalProcess(ref, name)
    },
  }
}

function exitOf(child: SpawnedProcess): Promise<Pick<ExecResult, 'exitCode' | 'signal'>> {
  return new Promise((resolve) => {
    // One that cannot be started ends with 127, as shells report it.
    child.once('exit', (exitCode: number | null, signal: NodeJS.Signals | null) => resolve({ exitCode, signal }))
  })
}

interface Copy {
  /** When every process has closed its end. */
  done: Promise<void>
  /** Takes what is there by now. What comes later is thrown away, so that nobody who still writes has to stop. */
  finish(): Promise<void>
}

function copy({ ours, oursFd }: Pipe, spool: Spool): Copy {
  let isFinished = false
  let writing: Promise<void> = Promise.resolve()
  ours.on('data', (chunk: Buffer) => {
    if (isFinished) return
    ours.pause()
    writing = spool
      .write(chunk)
      // A full disk of ours must not stop the command; the count shows that something is missing.
      .catch(() => {})
      .finally(() => ours.resume())
  })
  const done = new Promise<void>((resolve) => {
    ours.once('close', resolve).once('error', () => ours.destroy())
  })
  return {
    done: done.then(() => writing),
    async finish() {
      await writing
      ours.pause()
      isFinished = true
      if (!ours.destroyed) for (const chunk of readNow(oursFd)) await spool.write(chunk).catch(() => {})
      await spool.end()
      ours.resume()
    },
  }
}

/** What the pipe holds at this moment. */
function readNow(fd: number): Buffer[] {
  const chunks: Buffer[] = []
  let total = 0
  while (total < PIPE_BYTES) {
    const buffer = Buffer.allocUnsafe(64 * 1024)
    try {
      const size = readSync(fd, buffer)
      if (size === 0) break
      chunks.push(buffer.subarray(0, size))
      total += size
    } catch (error) {
      if (errnoOf(error) === 'EAGAIN') break
      throw error
    }
  }
  return chunks
}
