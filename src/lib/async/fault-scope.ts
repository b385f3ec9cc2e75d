import { AsyncLocalStorage } from 'node:async_hooks'
import type { Server, Socket } from 'node:net'

/** Ends what an uncaught error belongs to, such as a connection. */
type EndScope = (error: unknown) => void

const scopes = new AsyncLocalStorage<EndScope>()

/** Runs `work`. An error that `work`, or what it starts, throws and nothing catches belongs to this scope. */
export function runInFaultScope<T>(end: EndScope, work: () => T): T {
  return scopes.run(end, work)
}

/** Errors that nothing catches while a connection of this server is served belong to the connection. */
export function scopeConnections(server: Server): void {
  // First of all listeners: what the others start inherits the scope.
  server.prependListener('connection', (socket: Socket) => scopes.enterWith(() => void socket.destroy()))
}

/** For the handler of uncaught errors: ends the scope in which the error was thrown. False when there is none. */
export function endFaultScope(error: unknown): boolean {
  const end = scopes.getStore()
  end?.(error)
  return end !== undefined
}
