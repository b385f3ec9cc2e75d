import { Socket } from 'node:net'
import { toFailure, type Failure } from '../../model/failure.ts'
import type { GatewayControl } from '../gateway.ts'
import type { TurnReport } from '../handle-turn.ts'

/** A request of the supervisor. `init` is the first and returns when the gateway listens; `accept` carries a connection. */
export interface ShardRequest {
  id: number
  method: 'init' | 'accept' | keyof GatewayControl
  args: unknown[]
}

export interface Reply {
  id: number
  result?: unknown
  failure?: Failure
}

/** Sent to the supervisor when a session begins to have calls in flight, and when it has none any more. */
export interface BusyReport {
  sessionId: string
  isBusy: boolean
}

export interface ShardInit<T> {
  /** 0 at the first start; after a crash the same port as before, because harnesses have its URL. */
  port: number
  /** Settings of the program that calls `serveShard`. */
  settings: T
}

/** A gateway with the methods that only its own process calls. */
interface ShardGateway extends GatewayControl {
  accept(sessionId: string, socket: Socket): void
  cutConnections(): void
}

export interface RunningShard extends AsyncDisposable {
  gateway: ShardGateway
  port: number
}

/** A gateway process that has not stored its calls after this time exits. */
const LAST_STORE_MS = 8000

/** Runs this process as a shard: `start` creates the gateway; requests arrive from the process that forked this one. */
export function serveShard<T>(
  start: (init: ShardInit<T>, report: (message: TurnReport | BusyReport) => void) => Promise<RunningShard>,
): void {
  let shard: RunningShard | undefined
  process.on('message', (request: ShardRequest, handle: unknown) => {
    void answer(request, handle)
  })
  // The supervisor has exited or stops this process: calls in flight are cut and stored, then the process exits.
  process.on('disconnect', () => {
    setTimeout(() => process.exit(1), LAST_STORE_MS).unref()
    shard?.gateway.cutConnections()
    void Promise.resolve(shard?.[Symbol.asyncDispose]()).finally(() => process.exit(0))
  })

  async function answer({ id, method, args }: ShardRequest, handle: unknown): Promise<void> {
    const reply: Reply = { id }
    try {
      if (method === 'init') {
        shard = await start(args[0] as ShardInit<T>, send)
        reply.result = shard.port
      } else if (method === 'accept') {
        if (handle instanceof Socket) accept(handle, args[0] as string)
      } else if (shard !== undefined) {
        const call = shard.gateway[method] as (...given: unknown[]) => Promise<unknown>
        reply.result = await call.apply(shard.gateway, args)
      }
    } catch (error) {
      reply.failure = toFailure(error)
    }
    send(reply)
  }

  function accept(socket: Socket, sessionId: string): void {
    socket.on('error', () => socket.destroy())
    // A client that has sent its request may close its side and still read the answer.
    socket.allowHalfOpen = true
    socket.setNoDelay(true)
    shard?.gateway.accept(sessionId, socket)
  }
}

/** A message without a supervisor to read it is dropped. */
function send(message: Reply | TurnReport | BusyReport): void {
  if (process.connected) process.send?.(message, undefined, undefined, () => {})
}
