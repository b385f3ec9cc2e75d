/** Loaded before a program that cannot be told where to listen: an open proxy is not for the whole network. */
import { Server } from 'node:net'

type Listen = (this: Server, options: object, done?: () => void) => Server

const listen = Server.prototype.listen as Listen
Server.prototype.listen = function (this: Server, port: unknown, ...rest: unknown[]): Server {
  const done = rest.find((value) => typeof value === 'function') as (() => void) | undefined
  return listen.call(this, { port, host: '127.0.0.1' }, done)
} as typeof Server.prototype.listen
