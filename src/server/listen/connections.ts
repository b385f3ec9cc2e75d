import type { IncomingMessage, Server, ServerResponse } from 'node:http'
import type { Socket } from 'node:net'
import type { ListenLimits } from './listen.ts'

interface Exchange {
  incoming: IncomingMessage
  outgoing: ServerResponse
  socket: Socket
  /** At the last look. */
  bytesRead: number
  bytesWritten: number
  /** Milliseconds, in a row, in which the body came too slowly, and in which the reader took nothing. */
  slowMs: number
  stalledMs: number
}

/**
 * Who is connected, and whether they do anything. Node's own limits are on the time of a whole request, which a large
 * upload over a slow line would exceed and a sender of one byte a second could use up; here it is the speed that counts.
 */
export class Connections {
  readonly #limits: ListenLimits
  /** Those without a request, longest first. */
  readonly #idle = new Set<Socket>()
  readonly #exchanges = new Set<Exchange>()
  /** Requests may come one behind the other without waiting for answers. */
  readonly #busy = new Map<Socket, number>()
  readonly #endless = new WeakSet<ServerResponse>()
  #count = 0
  #isClosing = false

  constructor(limits: ListenLimits) {
    this.#limits = limits
  }

  /** `event`: when a connection is ready to be used. */
  watch(server: Server, event: 'connection' | 'secureConnection'): void {
    server.on(event, (socket: Socket) => this.#admit(socket))
    server.on('request', (incoming, outgoing) => this.#follow(incoming, outgoing))
  }

  /** Those that asked for nothing make room for new ones; those that are at work do not. */
  #admit(socket: Socket): void {
    if (this.#count >= this.#limits.maxConnections) {
      const [longest] = this.#idle
      if (longest === undefined) {
        socket.destroy()
        return
      }
      this.#idle.delete(longest)
      longest.destroy()
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

  /** To be called every so many milliseconds. */
  check(everyMs: number): void {
    for (const exchange of this.#exchanges) {
      if (this.#isSlow(exchange, everyMs)) refuse(exchange)
      else if (this.#isStalled(exchange, everyMs)) exchange.socket.destroy()
    }
  }

  #isSlow(exchange: Exchange, everyMs: number): boolean {
    const { incoming, socket } = exchange
    const received = socket.bytesRead - exchange.bytesRead
    exchange.bytesRead = socket.bytesRead
    // Bytes that lie here unread mean that the server is the slow one.
    const isAwaited = !incoming.complete && incoming.readableLength === 0
    const isTooFew = received < (this.#limits.minBytesPerSecond * everyMs) / 1000
    exchange.slowMs = isAwaited && isTooFew ? exchange.slowMs + everyMs : 0
    return exchange.slowMs >= this.#limits.rateWindowMs
  }

  #isStalled(exchange: Exchange, everyMs: number): boolean {
    const { socket } = exchange
    const isTaking = socket.bytesWritten !== exchange.bytesWritten || socket.writableLength === 0
    exchange.bytesWritten = socket.bytesWritten
    exchange.stalledMs = isTaking ? 0 : exchange.stalledMs + everyMs
    return exchange.stalledMs >= this.#limits.stalledReaderMs
  }

  /** An answer that never ends by itself; it is ended when the server closes. */
  markEndless(outgoing: ServerResponse): void {
    this.#endless.add(outgoing)
  }

  /** Closes those that ask for nothing; from now on each answer is the last on its connection. */
  endSoon(): void {
    this.#isClosing = true
    for (const socket of this.#idle) socket.destroy()
    for (const { outgoing } of this.#exchanges) {
      if (!outgoing.headersSent) outgoing.setHeader('connection', 'close')
      else if (this.#endless.has(outgoing)) outgoing.end()
    }
  }
}

function refuse({ outgoing, socket }: Exchange): void {
  if (outgoing.headersSent || !socket.writable) {
    socket.destroy()
    return
  }
  socket.end('HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n')
  // An end is only an end when the other side agrees.
  socket.destroySoon()
}
