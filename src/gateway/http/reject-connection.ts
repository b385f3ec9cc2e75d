import type { Socket } from 'node:net'

const LINGER_MS = 5000

/**
 * Answers a connection that no gateway process can accept. The request is not read, so its API is unknown: the body has
 * the error fields of all APIs.
 */
export function rejectConnection(socket: Socket): void {
  const message = 'The gateway is restarting. Retry the request.'
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
  // Closing a socket with unread bytes resets it, and the client may not receive the response.
  socket.resume()
  setTimeout(() => socket.destroy(), LINGER_MS).unref()
}
