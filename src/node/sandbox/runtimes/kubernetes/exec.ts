import { PassThrough, Writable } from 'node:stream'
import type { Duplex } from 'node:stream'
import { once } from 'node:events'
import * as z from 'zod'
import { onAbort } from '../../../../lib/async/until-aborted.ts'
import { parseJson } from '../../../../lib/json/json-text.ts'
import { describeError } from '../../../../lib/fs/errno.ts'
import type { HelperProcess } from '../../linux/files/transfers.ts'
import type { Cluster } from './cluster.ts'
import { encodeFrame, OPCODES, readMessages } from './frames.ts'

const CHANNELS = { stdin: 0, stdout: 1, stderr: 2, status: 3 } as const
const PIECE_BYTES = 64 * 1024
const TEXT_BYTES = 64 * 1024
/** An idle connection gets a ping, and is closed after this silence. */
const PING_MS = 20_000
const SILENCE_MS = 60_000

export interface ContainerTarget {
  namespace: string
  pod: string
  container: string
}

export interface ExecHandlers {
  /** Reading continues when the promise has resolved. */
  stdout(data: Buffer): Promise<void> | void
  stderr(data: Buffer): Promise<void> | void
}

/** `exit`: the program ended; `refused`: it could not be started; `lost`: unknown, because the connection broke. */
export type ExecEnd =
  | { kind: 'exit'; exitCode: number }
  | { kind: 'refused'; message: string }
  | { kind: 'lost'; message: string }

export interface ExecStream {
  /** Resolves when more can be written. Data after the end is dropped. */
  write(data: string | Uint8Array): Promise<void>
  /** Never rejects. Resolves after all output has been handled. */
  ended: Promise<ExecEnd>
  close(): void
}

const Status = z.looseObject({
  status: z.string(),
  reason: z.string().optional(),
  message: z.string().optional(),
  details: z
    .looseObject({
      causes: z.array(z.looseObject({ reason: z.string().optional(), message: z.string().optional() })).nullish(),
    })
    .nullish(),
})

/** Starts a program in a container. Throws if the server rejects the request; a missing program ends with `refused`. */
export async function openExec(
  cluster: Cluster,
  { namespace, pod, container }: ContainerTarget,
  command: readonly string[],
  handlers: ExecHandlers,
  signal?: AbortSignal,
): Promise<ExecStream> {
  const query = [
    ...command.map((word) => ['command', word] as const),
    ['container', container] as const,
    ...['stdin', 'stdout', 'stderr'].map((name) => [name, 'true'] as const),
  ]
  const socket = await cluster.upgrade(`/api/v1/namespaces/${namespace}/pods/${pod}/exec`, query, signal)
  socket.on('error', () => socket.destroy())
  const send = (opcode: number, data: Uint8Array) =>
    socket.destroyed || socket.writableEnded ? true : socket.write(encodeFrame(opcode, data, true))
  return {
    async write(data) {
      const bytes = Buffer.from(data)
      for (let at = 0; at < bytes.length && !socket.destroyed; at += PIECE_BYTES) {
        const piece = Buffer.concat([Buffer.of(CHANNELS.stdin), bytes.subarray(at, at + PIECE_BYTES)])
        if (!send(OPCODES.binary, piece)) await drained(socket)
      }
    },
    ended: receive(socket, send, handlers),
    close: () => socket.destroy(),
  }
}

async function receive(
  socket: Duplex,
  send: (opcode: number, data: Uint8Array) => boolean,
  handlers: ExecHandlers,
): Promise<ExecEnd> {
  let end: ExecEnd | undefined
  let reason = 'the connection was closed'
  let heardAt = performance.now()
  let isHandling = false
  const timer = setInterval(() => {
    if (isHandling) return
    if (performance.now() - heardAt > SILENCE_MS) socket.destroy(new Error('the connection went silent'))
    else send(OPCODES.ping, Buffer.alloc(0))
  }, PING_MS)
  try {
    for await (const { opcode, data } of readMessages(socket as AsyncIterable<Buffer>)) {
      heardAt = performance.now()
      if (opcode === OPCODES.close) break
      if (opcode === OPCODES.ping) send(OPCODES.pong, data)
      if (opcode !== OPCODES.binary && opcode !== OPCODES.text) continue
      const content = data.subarray(1)
      // The server sends an empty piece for each channel first.
      if (content.length === 0) continue
      isHandling = true
      if (data[0] === CHANNELS.stdout) await handlers.stdout(content)
      else if (data[0] === CHANNELS.stderr) await handlers.stderr(content)
      else if (data[0] === CHANNELS.status) end = toEnd(content.toString())
      isHandling = false
      heardAt = performance.now()
      if (end !== undefined) break
    }
  } catch (error) {
    reason = describeError(error)
  } finally {
    clearInterval(timer)
    send(OPCODES.close, Buffer.alloc(0))
    socket.destroy()
  }
  return end ?? { kind: 'lost', message: reason }
}

function toEnd(text: string): ExecEnd {
  const parsed = Status.safeParse(parseJson(text))
  if (!parsed.success) return { kind: 'refused', message: text.slice(0, 2000) }
  const { status, reason, message = reason ?? 'the program could not be started', details } = parsed.data
  if (status === 'Success') return { kind: 'exit', exitCode: 0 }
  const code = details?.causes?.find((cause) => cause.reason === 'ExitCode')?.message
  if (reason === 'NonZeroExitCode' && code !== undefined) return { kind: 'exit', exitCode: Number(code) }
  return { kind: 'refused', message }
}

/**
 * Runs a helper program and waits for its end. A program that cannot be started, or whose connection breaks, counts as
 * failed.
 */
export async function runTool(
  cluster: Cluster,
  target: ContainerTarget,
  command: readonly string[],
  { stdin, signal }: { stdin?: string; signal?: AbortSignal } = {},
): Promise<{ exitCode: number; stdout: string; stderr: string }> {
  const texts = { stdout: '', stderr: '' }
  const keep = (name: keyof typeof texts) => (data: Buffer) => {
    if (texts[name].length < TEXT_BYTES) texts[name] += data.toString('latin1')
  }
  const stream = await openExec(cluster, target, command, { stdout: keep('stdout'), stderr: keep('stderr') }, signal)
  using _ = onAbort(signal, () => stream.close())
  if (stdin !== undefined) void stream.write(stdin)
  const end = await stream.ended
  if (end.kind === 'exit') return { exitCode: end.exitCode, ...texts }
  return { exitCode: 255, stdout: texts.stdout, stderr: `${texts.stderr}${end.message}` }
}

/** Starts a helper program with streams. Its input has no end, so the program must know its length. */
export function startHelper(cluster: Cluster, target: ContainerTarget, command: readonly string[]): HelperProcess {
  const stdout = new PassThrough()
  const closed = new Promise<void>((resolve) => stdout.once('close', resolve))
  const controller = new AbortController()
  let stderr = ''
  const opening = openExec(
    cluster,
    target,
    command,
    {
      async stdout(data) {
        if (!stdout.destroyed && !stdout.write(data))
          await Promise.race([once(stdout, 'drain').catch(() => {}), closed])
      },
      stderr(data) {
        if (stderr.length < TEXT_BYTES) stderr += data.toString('latin1')
      },
    },
    controller.signal,
  )
  const run = async () => {
    try {
      const stream = await opening
      if (controller.signal.aborted) stream.close()
      const end = await stream.ended
      stdout.end()
      return end.kind === 'exit'
        ? { exitCode: end.exitCode, stderr }
        : { exitCode: 255, stderr: `${stderr}${end.message}` }
    } catch (error) {
      stdout.end()
      return { exitCode: 255, stderr: describeError(error) }
    }
  }
  const ended = run()
  const stdin = new Writable({
    write(chunk: Buffer, _, done) {
      opening
        .then((stream) => stream.write(chunk))
        .then(
          () => done(),
          (error: unknown) => done(error instanceof Error ? error : new Error(String(error))),
        )
    },
  })
  // `ended` has the reason.
  stdin.on('error', () => {})
  // A program may end without reading all of its input.
  void ended.then(() => stdin.destroy())
  return {
    stdin,
    stdout,
    ended,
    kill() {
      controller.abort()
      void opening.then(
        (stream) => stream.close(),
        () => {},
      )
      stdout.destroy()
    },
  }
}

function drained(socket: Duplex): Promise<void> {
  return new Promise((resolve) => {
    const done = () => {
      socket.off('drain', done).off('close', done)
      resolve()
    }
    socket.once('drain', done).once('close', done)
  })
}
