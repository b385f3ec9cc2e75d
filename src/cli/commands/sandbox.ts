import type { Socket } from 'node:net'
import { constants } from 'node:os'
import { buffer } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { kindOf } from '../../node/sandbox/load-runtime.ts'
import { DEFAULT_RUNTIME } from '../../node/sandbox/open-runtimes.ts'
import { runtimes } from '../../node/sandbox/runtimes/index.ts'
import type { Execution, ExecSpec, Runtime, Sandbox, SandboxSpec } from '../../node/sandbox/runtimes/runtime.ts'
import { RolloutError } from '../../model/failure.ts'
import { actionError, defineCommand, EXIT, option, parseNumber, toggle, usageError, type ExitCode } from '../command.ts'
import { listenForInterrupt } from '../stop-signals.ts'
import { RUNTIMES_CONFIG_FLAG } from '../input/config-flags.ts'
import { completeSettings, loadRuntimeSettings } from '../../compose/runtime-settings.ts'
import {
  loadCustomRuntime,
  openRuntime,
  SANDBOX_DIR_HELP,
  SANDBOX_FLAGS,
  toSandboxSpec,
} from '../input/sandbox-options.ts'
import { formatTable } from '../views/table.ts'
import { print, printError, printJson } from '../views/print.ts'

const START_MS = 120_000
/** Renewed while this process runs. After a crash, `rm --expired` removes the sandbox. */
const LEASE_MS = 60_000
/** Limit of output that is buffered on disk. */
const OUTPUT_BYTES = 1024 ** 3
/** Exit code of `timeout` (coreutils). */
const TIMED_OUT = 124

export const command = defineCommand({
  name: 'sandbox',
  description: 'Run a command or a shell in a sandbox, list sandboxes, and remove them.',
  words: { name: 'exec | shell | ls | rm ID…', description: 'Action' },
  flags: {
    runtime: option('KIND', `Runtime of the sandbox (default: ${DEFAULT_RUNTIME}; for ls and rm: all)`, {
      choices: runtimes.kinds,
    }),
    'runtime-module': option('FILE', 'Instead of --runtime: a JavaScript or TypeScript module that exports "runtime"'),
    ...SANDBOX_FLAGS,
    timeout: option('SECONDS', 'exec: time limit; exit code 124 if it is exceeded'),
    stdin: toggle('exec: pass standard input, read to its end'),
    expired: toggle('rm: all sandboxes whose lease has expired'),
    config: RUNTIMES_CONFIG_FLAG,
    dir: option('DIR', SANDBOX_DIR_HELP),
    json: toggle('ls: print JSON'),
  },
  rest: 'the command of exec',
  examples: [
    'polar sandbox exec -- sh -c "id; ls /"',
    'polar sandbox exec --memory-mb 512 --pids 100 --timeout 60 --mount .:/code -- ls /code',
    'polar sandbox exec --runtime docker --image debian:12 --network open -- apt-get update',
    'polar sandbox shell --network pypi.org,files.pythonhosted.org',
    'polar sandbox ls',
    'polar sandbox rm --expired',
  ],
  async run({ flags, words: [action, ...ids], rest }): Promise<ExitCode> {
    const custom = await loadCustomRuntime(flags['runtime-module'], flags.runtime)
    const { runtimes: configured } = await loadRuntimeSettings(process.env, flags.config)
    const open = (kind: string): Runtime =>
      openRuntime(kind, flags.dir, process.env, { custom, settings: configured[kind] })
    if (action !== 'exec' && rest.length > 0) throw usageError('sandbox', 'only exec accepts a command after --')
    if (action !== 'rm' && ids.length > 0) throw usageError('sandbox', `unexpected argument "${ids[0]}"`)
    const chosen = custom === undefined ? flags.runtime : kindOf(custom)
    const kinds = chosen === undefined ? runtimes.kinds : [chosen]
    switch (action) {
      case 'exec':
      case 'shell': {
        const [file, ...args] = rest
        if (action === 'exec' && file === undefined) throw usageError('sandbox', 'name the command to run after --')
        const seconds = parseNumber('sandbox', 'timeout', flags.timeout, { min: 1, max: 604_800 })
        const kind = chosen ?? DEFAULT_RUNTIME
        const settings = await completeSettings(kind, configured[kind] ?? {}, process.env)
        await using runtime = openRuntime(kind, flags.dir, process.env, { custom, settings })
        const spec = toSandboxSpec(flags, runtime, Date.now() + LEASE_MS)
        if (file === undefined) return passOn(await runShell(runtime, spec))
        const stdin = flags.stdin ? await buffer(process.stdin) : ''
        const timeoutMs = seconds === undefined ? undefined : seconds * 1000
        return passOn(await runCommand(runtime, spec, { command: [file, ...args], stdin, timeoutMs }))
      }
      case 'ls':
        return list(kinds.map(open), flags.json)
      case 'rm':
        if (ids.length === 0 && !flags.expired)
          throw usageError('sandbox', 'name the sandboxes to remove, or use --expired')
        return remove(kinds.map(open), ids, flags.expired)
      case undefined:
      default:
        throw actionError('sandbox', action, 'exec, shell, ls or rm')
    }
  },
})

/** The exit code of the sandboxed command is passed on, whatever it is. */
function passOn(code: number): ExitCode {
  return code as ExitCode
}

// --- exec and shell --------------------------------------------------------------------------------------------------

async function runCommand(
  runtime: Runtime,
  spec: SandboxSpec,
  exec: Pick<ExecSpec, 'command' | 'stdin' | 'timeoutMs'>,
): Promise<number> {
  return withSandbox(runtime, spec, async (box, signal) => {
    const execution = await box.exec({ ...exec, leftovers: 'end', outputBytes: OUTPUT_BYTES })
    const kill = (): void => void execution.kill()
    signal.addEventListener('abort', kill, { once: true })
    if (signal.aborted) kill()
    await Promise.all([
      copyTo(execution.output('stdout'), process.stdout, kill),
      copyTo(execution.output('stderr'), process.stderr, kill),
    ])
    return endOf(execution)
  })
}

/**
 * Connects to the shell by a socket of the sandbox, the only bidirectional stream that every runtime has. The shell gets a
 * terminal if this process has one and the sandbox has `script`; otherwise it reads commands line by line.
 */
async function runShell(runtime: Runtime, spec: SandboxSpec): Promise<number> {
  const { promise: connected, resolve } = Promise.withResolvers<Socket>()
  // The first connection is the shell's; connections of programs that it runs are closed.
  const accept = (socket: Socket): void =>
    isConnected ? void socket.destroy() : ((isConnected = true), resolve(socket))
  let isConnected = false
  const { stdin, stdout } = process
  return withSandbox(runtime, { ...spec, socket: { port: 18_080, accept } }, async (box, signal) => {
    const isTerminal = stdin.isTTY && stdout.isTTY && (await hasProgram(box, 'script'))
    const size = `stty rows ${stdout.rows} cols ${stdout.columns} 2>/dev/null; `
    const shell = isTerminal ? `script -qefc '${size}exec bash -i' /dev/null` : 'bash'
    const script = `exec 3<>/dev/tcp/127.0.0.1/${box.socketPort} && ${shell} <&3 >&3 2>&3`
    const env = { TERM: process.env['TERM'] ?? 'dumb' }
    const execution = await box.exec({ command: ['bash', '-c', script], env, leftovers: 'end' })
    const ended = execution.result.then(() => undefined)
    const socket = await Promise.race([connected, ended])
    if (socket === undefined) {
      await copyTo(execution.output('stderr'), process.stderr)
      return endOf(execution)
    }
    const end = (): void => void execution.kill()
    signal.addEventListener('abort', end, { once: true })
    if (isTerminal) stdin.setRawMode(true)
    try {
      stdin.pipe(socket)
      socket.on('error', () => socket.destroy()).pipe(stdout, { end: false })
      const closed = new Promise<void>((done) => socket.once('close', () => done()))
      await ended
      // The last output may still be in transit.
      await Promise.race([closed, sleep(500, undefined, { ref: false })])
      return await endOf(execution)
    } finally {
      if (isTerminal) stdin.setRawMode(false)
      stdin.unpipe(socket).pause()
      socket.destroy()
    }
  })
}

/** Runs `work` in a new sandbox, and removes the sandbox afterwards, also after an interrupt. */
async function withSandbox(
  runtime: Runtime,
  spec: SandboxSpec,
  work: (box: Sandbox, signal: AbortSignal) => Promise<number>,
): Promise<number> {
  using interrupted = listenForInterrupt('SIGHUP')
  try {
    await using box = await startChecked(
      runtime,
      spec,
      AbortSignal.any([interrupted.signal, AbortSignal.timeout(START_MS)]),
    )
    const renewing = setInterval(() => void box.renew(Date.now() + LEASE_MS).catch(() => {}), LEASE_MS / 3)
    try {
      const code = await work(box, interrupted.signal)
      return interrupted.signal.aborted ? EXIT.interrupted : code
    } finally {
      clearInterval(renewing)
    }
  } catch (error) {
    if (interrupted.signal.aborted) return EXIT.interrupted
    throw error
  }
}

/** Checks the runtime only after a failed start, because a check starts a sandbox itself. */
async function startChecked(runtime: Runtime, spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
  try {
    return await runtime.start(spec, signal)
  } catch (error) {
    if (!(error instanceof RolloutError) || error.code !== 'runtime.start-failed' || signal.aborted) throw error
    const checked = await runtime.check(signal)
    if (checked.isUsable) throw error
    const message = `${runtime.kind} cannot be used here: ${checked.reason}. Run polar doctor to see which runtimes work.`
    throw new RolloutError('runtime.start-failed', message, { cause: error })
  }
}

async function endOf(execution: Execution): Promise<number> {
  const { exitCode, signal, isTimedOut } = await execution.result
  if (isTimedOut) return TIMED_OUT
  return exitCode ?? 128 + (signal === null ? 0 : constants.signals[signal])
}

async function hasProgram(box: Sandbox, name: string): Promise<boolean> {
  const execution = await box.exec({ command: [name, '--version'], leftovers: 'end', timeoutMs: 10_000 })
  return (await execution.result).exitCode === 0
}

/** Stops if the reader closes the stream, as `head` does. */
async function copyTo(chunks: AsyncIterable<Buffer>, stream: NodeJS.WriteStream, onClosed?: () => void): Promise<void> {
  const ignore = (): void => {}
  stream.on('error', ignore)
  for await (const chunk of chunks) {
    const failure = await new Promise<unknown>((resolve) => stream.write(chunk, resolve))
    if (failure == null) continue
    onClosed?.()
    return
  }
  stream.off('error', ignore)
}

// --- ls and rm -------------------------------------------------------------------------------------------------------

interface Row {
  id: string
  runtime: string
  age_seconds: number
  /** Negative if the lease has expired. */
  lease_seconds: number
  labels: Readonly<Record<string, string>>
}

async function list(all: readonly Runtime[], asJson: boolean): Promise<ExitCode> {
  const now = Date.now()
  const rows: Row[] = []
  for (const runtime of all)
    for (const { id, startedAt, leaseUntil, labels } of await listed(runtime))
      rows.push({ id, runtime: runtime.kind, age_seconds: toSeconds(now - startedAt), lease_seconds: toSeconds(leaseUntil - now), labels }) // prettier-ignore
  if (asJson) {
    printJson(rows, 2)
    return EXIT.done
  }
  if (rows.length === 0) {
    printError('No sandboxes.\n')
    return EXIT.done
  }
  print(
    formatTable([
      ['id', 'runtime', 'age', 'lease', 'labels'],
      ...rows.map(({ id, runtime, age_seconds, lease_seconds, labels }) => [
        id,
        runtime,
        `${age_seconds} s`,
        lease_seconds < 0 ? 'expired' : `${lease_seconds} s`,
        Object.entries(labels)
          .map(([name, value]) => `${name}=${value}`)
          .join(' '),
      ]),
    ]),
  )
  return EXIT.done
}

async function remove(all: readonly Runtime[], ids: readonly string[], isExpired: boolean): Promise<ExitCode> {
  const now = Date.now()
  const found = new Set<string>()
  for (const runtime of all) {
    for (const { id, leaseUntil } of await listed(runtime)) {
      if (!ids.includes(id) && !(isExpired && leaseUntil < now)) continue
      await runtime.remove(id)
      found.add(id)
      print(`${id}\n`)
    }
  }
  const missing = ids.filter((id) => !found.has(id))
  for (const id of missing) printError(`Sandbox ${id} does not exist.\n`)
  return missing.length > 0 ? EXIT.failed : EXIT.done
}

/** Empty if the runtime does not answer, such as a Docker daemon that does not run. */
async function listed(runtime: Runtime): ReturnType<Runtime['list']> {
  return runtime.list().catch(() => [])
}

function toSeconds(milliseconds: number): number {
  return Math.floor(milliseconds / 1000)
}
