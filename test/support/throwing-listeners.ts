/**
 * Imported first, it makes the first event of each kind on each server, and the first of each kind on any socket, throw
 * after its listeners have run.
 */
import { EventEmitter } from 'node:events'
import { Server, Socket } from 'node:net'

const SERVER_EVENTS = ['connection', 'request', 'upgrade', 'connect', 'clientError', 'dropRequest', 'error', 'close']
const SOCKET_EVENTS = ['data', 'end', 'error', 'close', 'drain', 'finish']

const ofServers = new WeakMap<Server, Set<unknown>>()
const ofSockets = new Set<unknown>()
const { emit } = EventEmitter.prototype

EventEmitter.prototype.emit = function (this: EventEmitter, name, ...args: unknown[]): boolean {
  const isHeard = emit.call(this, name, ...args)
  if (isFirst(this, name)) throw new Error(`thrown by ${this instanceof Server ? 'server' : 'socket'} ${String(name)}`)
  return isHeard
}

function isFirst(emitter: EventEmitter, name: unknown): boolean {
  if (emitter instanceof Server) {
    const thrown = ofServers.get(emitter) ?? new Set()
    ofServers.set(emitter, thrown)
    return SERVER_EVENTS.includes(String(name)) && thrown.size < thrown.add(name).size
  }
  if (!(emitter instanceof Socket)) return false
  return SOCKET_EVENTS.includes(String(name)) && ofSockets.size < ofSockets.add(name).size
}
