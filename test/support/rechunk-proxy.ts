import { createServer, connect, type AddressInfo, type Socket } from 'node:net'

export interface RechunkProxy extends AsyncDisposable {
  url: string
}

/**
 * A TCP proxy that forwards the same bytes in other pieces: `nextSize` returns the length of each piece, and every piece is
 * sent in a separate iteration of the event loop, so that the reader receives it separately.
 */
export async function startRechunkProxy(
  targetUrl: string,
  nextSize: () => number,
  onConnection: () => void = () => {},
): Promise<RechunkProxy> {
  const target = new URL(targetUrl)
  const sockets = new Set<Socket>()
  const server = createServer({ allowHalfOpen: true, noDelay: true }, (client) => {
    onConnection()
    const upstream = connect({ host: target.hostname, port: Number(target.port), allowHalfOpen: true })
    for (const socket of [client, upstream]) {
      sockets.add(socket)
      socket.on('error', () => {})
      socket.on('close', () => sockets.delete(socket))
    }
    client.pipe(upstream)
    void relay(upstream, client, nextSize)
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    async [Symbol.asyncDispose]() {
      for (const socket of sockets) socket.destroy()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

async function relay(from: Socket, to: Socket, nextSize: () => number): Promise<void> {
  try {
    for await (const bytes of from as AsyncIterable<Buffer>) {
      for (let at = 0; at < bytes.length;) {
        const size = Math.max(1, nextSize())
        to.write(bytes.subarray(at, at + size))
        at += size
        await new Promise((resolve) => setImmediate(resolve))
      }
    }
    to.end()
  } catch {
    to.destroy()
  }
}
