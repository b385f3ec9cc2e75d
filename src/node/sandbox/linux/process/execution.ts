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

/** Longest time to wait for output after all processes have ended. */
const DRAIN_MS = 2000
/** More than the capacity of a pipe, so that reading a pipe that is refilled all the time ends. */
const PIPE_BYTES = 1024 * 1024

/**
 * The process namespace of one command and its descendants, so that all of them can be ended. Without namespaces, the
 * set of processes with the sandbox's mark.
 */
export interface CommandNamespace {
  shell: WaitingShell
  /** Kills all processes; resolves when none is left. Idempotent. */
  close(): Promise<void>
  /**
   * Returns the namespace to the pool if the command ended by itself and left no process. Returns whether it did;
   * `close` then has no effect.
   */
  reclaim?(): Promise<boolean>
}

/**
 * A shell inside the namespace that waits for a script that executes the command. Entering takes most of a command's
 * start time, so it is done in advance. The environment is part of the script: variables such as LD_PRELOAD would also
 * affect the programs that enter, and every user of the machine can read arguments.
 */
export interface WaitingShell {
  child: SpawnedProcess
  ended: Promise<Pick<ExecResult, 'exitCode' | 'signal'>>
  /** Whether the spawned process only waits for the command's first process, which is its child. */
  hasWaiter: boolean
  control: Pipe
  stdin: Pipe
  stdout: Pipe
  stderr: Pipe
}

/** Starts a shell. `prefix` is the command prefix that enters the namespace. */
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
  // Standard input is the control pipe; file descriptor 3 becomes the command's input.
  const [file, args] = prefix.length === 0 ? ['/bin/sh', []] : [prefix[0]!, [...prefix.slice(1), '/bin/sh']]
  const all = [control, stdout, stderr, stdin]
  const child = spawn(file, args, { stdio: all.map(({ childEnd }) => childEnd), env })
  const ended = exitOf(child)
  await Promise.race([new Promise((resolve) => child.once('spawn', resolve)), ended])
  for (const pipe of all) pipe.settle()
  for (const pipe of [control, stdin]) pipe.ours.on('error', () => pipe.ours.destroy())
  return { child, ended, hasWaiter, control, stdin, stdout, stderr }
}

/** Closes a shell that got no script. */
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
    // The process that entered ends with its child; this kills one that had not entered yet.
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
    // A program that cannot be started ends with 127, as in shells.
    child.once('exit', (exitCode: number | null, signal: NodeJS.Signals | null) => resolve({ exitCode, signal }))
  })
}

interface Copy {
  /** Resolves when every process has closed its end. */
  done: Promise<void>
  /** Reads what the pipe contains and drops later output, so that a process that still writes does not block. */
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
      // A full disk of this machine must not stop the command; the byte count shows that output is missing.
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

/** Returns what the pipe contains at this moment. */
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
