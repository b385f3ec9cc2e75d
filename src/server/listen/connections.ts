import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { ListenLimits } from './listen.ts'

interface Exchange {
  incoming: IncomingMessage
  outgoing: ServerResponse
  socket: Socket
  /** Counters at the last check. */
  bytesRead: number
  bytesWritten: number
  /** Consecutive milliseconds in which the request body arrived too slowly, and in which the client read nothing. */
  slowMs: number
  stalledMs: number
}

/**
 * Open connections and their transfer rates. Node.js limits the time of a whole request, which a large upload over a slow
 * network would exceed and a client that sends one byte per second could use up; this class limits the rate instead.
 */
export class Connections {
  readonly #limits: ListenLimits
  /** Connections without a request, longest idle first. */
  readonly #idle = new Set<Socket>()
  readonly #exchanges = new Set<Exchange>()
  /** Number of open requests; more than one with HTTP pipelining. */
  readonly #busy = new Map<Socket, number>()
  readonly #endless = new WeakSet<ServerResponse>()
  #count = 0
  #isClosing = false

  constructor(limits: ListenLimits) {
    this.#limits = limits
  }

  /** `event`: emitted when a connection is ready. */
  watch(server: Server, event: 'connection' | 'secureConnection'): void {
    server.on(event, (socket: Socket) => this.#admit(socket))
    server.on('request', (incoming, outgoing) => this.#follow(incoming, outgoing))
  }

  /** At the limit, closes the connection that was idle longest; without an idle one, the new connection. */
  #admit(socket: Socket): void {
    if (this.#count >= this.#limits.maxConnections) {
      const [longestIdle] = this.#idle
      if (longestIdle === undefined) {
        socket.destroy()
        return
      }
      this.#idle.delete(longestIdle)
      longestIdle.destroy()
    }
    this.#count += 1
    this.#idle.add(socket)
    socket.once('close', () => {
      this.#count -= 1
      this.#idle.delete(socket)
    })
  }

  #follow(incoming: IncomingMessage, outgoing: ServerResponse): void {
    const { socket } = incoming
    this.#idle.delete(socket)
    const { bytesRead, bytesWritten } = socket
    const exchange = { incoming, outgoing, socket, bytesRead, bytesWritten, slowMs: 0, stalledMs: 0 }
    this.#exchanges.add(exchange)
    this.#busy.set(socket, (this.#busy.get(socket) ?? 0) + 1)
    if (this.#isClosing) outgoing.setHeader('connection', 'close')
    outgoing.once('close', () => {
      this.#exchanges.delete(exchange)
      const others = (this.#busy.get(socket) ?? 1) - 1
      if (others > 0) {
        this.#busy.set(socket, others)
        return
      }
      this.#busy.delete(socket)
      if (this.#isClosing) socket.end()
      else if (!socket.destroyed) this.#idle.add(socket)
    })
  }

  /** Must be called every `everyMs` milliseconds. */
  check(everyMs: number): void {
    for (const exchange of this.#exchanges) {
      if (this.#isSlow(exchange, everyMs)) reject(exchange)
      else if (this.#isStalled(exchange, everyMs)) exchange.socket.destroy()
    }
  }

  #isSlow(exchange: Exchange, everyMs: number): boolean {
    const { incoming, socket } = exchange
    const received = socket.bytesRead - exchange.bytesRead
    exchange.bytesRead = socket.bytesRead
    // Unread bytes in the buffer mean that the server is slow, not the client.
    const isAwaited = !incoming.complete && incoming.readableLength === 0
    const isTooFew = received < (this.#limits.minBytesPerSecond * everyMs) / 1000
    exchange.slowMs = isAwaited && isTooFew ? exchange.slowMs + everyMs : 0
    return exchange.slowMs >= this.#limits.rateWindowMs
  }

  #isStalled(exchange: Exchange, everyMs: number): boolean {
    const { socket } = exchange
    const isReading = socket.bytesWritten !== exchange.bytesWritten || socket.writableLength === 0
    exchange.bytesWritten = socket.bytesWritten
    exchange.stalledMs = isReading ? 0 : exchange.stalledMs + everyMs
    return exchange.stalledMs >= this.#limits.stalledReaderMs
  }

  /** Marks a response that does not end by itself; it is ended when the server closes. */
  markEndless(outgoing: ServerResponse): void {
    this.#endless.add(outgoing)
  }

  /** Closes idle connections; from now on each response closes its connection. */
  endSoon(): void {
    this.#isClosing = true
    for (const socket of this.#idle) socket.destroy()
    for (const { outgoing } of this.#exchanges) {
      if (!outgoing.headersSent) outgoing.setHeader('connection', 'close')
      else if (this.#endless.has(outgoing)) outgoing.end()
    }
  }
}

function reject({ outgoing, socket }: Exchange): void {
  if (outgoing.headersSent || !socket.writable) {
    socket.destroy()
    return
  }
  socket.end('HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n')
  // Does not wait for the client to close its side.
  socket.destroySoon()
}
