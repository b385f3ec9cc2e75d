import { Socket } from 'node:net'
import { toFailure, type Failure } from '../../model/failure.ts'
import type { GatewayControl } from '../gateway.ts'

/** From the supervisor. `init` comes first and is answered when the gateway listens; `accept` carries a connection. */
export interface Question {
  id: number
  method: 'init' | 'accept' | keyof GatewayControl
  args: unknown[]
}

export interface Reply {
  id: number
  result?: unknown
  failure?: Failure
}

/** Sent to the supervisor when a model call has ended. */
export interface TurnReport {
  sessionId: string
  /** Tokens that the model sampled in it. */
  tokens: number
}

/** Sent to the supervisor when a session begins to have calls in flight, and when it has none any more. */
export interface BusyReport {
  sessionId: string
  isBusy: boolean
}

export interface ShardInit<T> {
  /** 0 the first time; the same port again after a crash, because harnesses hold its URL. */
  port: number
  /** Of the program that calls `serveShard`. */
  settings: T
}

/** A gateway with what the process that owns it needs besides. */
interface ShardGateway extends GatewayControl {
  accept(sessionId: string, socket: Socket): void
  cutConnections(): void
}

export interface RunningShard extends AsyncDisposable {
  gateway: ShardGateway
  port: number
}

/** A gateway process that cannot store what it has in this time is ended without. */
const LAST_STORE_MS = 8000

/** Turns this process into a shard: `start` makes the gateway, questions come from the process that forked this one. */
export function serveShard<T>(
  start: (init: ShardInit<T>, report: (message: TurnReport | BusyReport) => void) => Promise<RunningShard>,
): void {
  let shard: RunningShard | undefined
  process.on('message', (question: Question, handle: unknown) => {
    void answer(question, handle)
  })
  // The supervisor has ended or wants this process to end: calls in flight are cut and stored, then the process exits.
  process.on('disconnect', () => {
    setTimeout(() => process.exit(1), LAST_STORE_MS).unref()
    shard?.gateway.cutConnections()
    void Promise.resolve(shard?.[Symbol.asyncDispose]()).finally(() => process.exit(0))
  })

  async function answer({ id, method, args }: Question, handle: unknown): Promise<void> {
    const reply: Reply = { id }
    try {
      if (method === 'init') {
        shard = await start(args[0] as ShardInit<T>, tell)
        reply.result = shard.port
      } else if (method === 'accept') {
        if (handle instanceof Socket) take(handle, args[0] as string)
      } else if (shard !== undefined) {
        const call = shard.gateway[method] as (...given: unknown[]) => Promise<unknown>
        reply.result = await call.apply(shard.gateway, args)
      }
    } catch (error) {
      reply.failure = toFailure(error)
    }
    tell(reply)
  }

  function take(socket: Socket, sessionId: string): void {
    socket.on('error', () => socket.destroy())
    // A client that has sent its request may close its side and still read the answer.
    socket.allowHalfOpen = true
    socket.setNoDelay(true)
    shard?.gateway.accept(sessionId, socket)
  }
}

/** Without a supervisor there is no reader, and that is no error. */
function tell(message: Reply | TurnReport | BusyReport): void {
  if (process.connected) process.send?.(message, undefined, undefined, () => {})
}
