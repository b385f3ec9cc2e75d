import { AsyncLocalStorage } from 'node:async_hooks'
import type { Server, Socket } from 'node:net'

/** Ends the scope of an uncaught error, such as a connection. */
type EndScope = (error: unknown) => void

const scopes = new AsyncLocalStorage<EndScope>()

/** Runs `work`. Uncaught errors of `work`, and of asynchronous operations that it starts, belong to this scope. */
export function runInFaultScope<T>(end: EndScope, work: () => T): T {
  return scopes.run(end, work)
}

/** Makes each connection of the server a scope: an uncaught error closes its connection. */
export function scopeConnections(server: Server): void {
  // Before all other listeners, so that they inherit the scope.
  server.prependListener('connection', (socket: Socket) => scopes.enterWith(() => void socket.destroy()))
}

/** Ends the scope of an uncaught error. Returns false if the error has no scope. */
export function endFaultScope(error: unknown): boolean {
  const end = scopes.getStore()
  end?.(error)
  return end !== undefined
}
