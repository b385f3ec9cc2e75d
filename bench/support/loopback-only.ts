/** Loaded before a program without a setting for its listen address: the proxy must not be reachable from the network. */
import { Server } from 'node:net'

type Listen = (this: Server, options: object, done?: () => void) => Server

const listen = Server.prototype.listen as Listen
Server.prototype.listen = function (this: Server, port: unknown, ...rest: unknown[]): Server {
  const done = rest.find((value) => typeof value === 'function') as (() => void) | undefined
  return listen.call(this, { port, host: '127.0.0.1' }, done)
} as typeof Server.prototype.listen
