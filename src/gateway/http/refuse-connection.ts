import type { Socket } from 'node:net'

const LINGER_MS = 5000

/**
 * Answers a connection that no gateway process can take. The request is not read, so its API is not known: the body has
 * the fields that clients of every API look for.
 */
export function refuseConnection(socket: Socket): void {
  const message = 'The gateway is being restarted. Try again.'
  const error = { type: 'overloaded_error', message, code: 503, status: 'UNAVAILABLE' }
  const body = JSON.stringify({ type: 'error', error })
  const head = [
    'HTTP/1.1 503 Service Unavailable',
    'content-type: application/json',
    `content-length: ${Buffer.byteLength(body)}`,
    'retry-after: 1',
    'connection: close',
  ]
  socket.on('error', () => socket.destroy())
  socket.end(`${head.join('\r\n')}\r\n\r\n${body}`)
  // A socket that is closed with unread bytes is reset, and its peer may never see the answer.
  socket.resume()
  setTimeout(() => socket.destroy(), LINGER_MS).unref()
}
