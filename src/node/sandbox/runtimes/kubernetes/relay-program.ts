/** A frame between the relay and us: whose connection (4 bytes), what (1 byte), how long (4 bytes), and the content. */
export const HEADER_BYTES = 9
/** How much of one connection may be on its way, so that one that is not read holds up no other. */
export const WINDOW_BYTES = 256 * 1024
export const MAX_CONNECTIONS = 512
export const KINDS = { open: 1, data: 2, end: 3, close: 4, credit: 5, ready: 6, failed: 7 } as const

/**
 * Runs in a pod, in a container of its own: listens on the pod's loopback and carries every connection over its own input
 * and output, which the API server brings to us. Its arguments are the ports.
 */
export const RELAY = `
const net = require('node:net')
const { stdin, stdout } = process
const live = new Map()
let count = 0
const send = (id, kind, data = Buffer.alloc(0)) => {
  const head = Buffer.alloc(${HEADER_BYTES})
  head.writeUInt32BE(id, 0)
  head[4] = kind
  head.writeUInt32BE(data.length, 5)
  stdout.write(Buffer.concat([head, data]))
}
const number = (value) => { const bytes = Buffer.alloc(4); bytes.writeUInt32BE(value); return bytes }
const accept = (port) => (socket) => {
  if (live.size >= ${MAX_CONNECTIONS}) return socket.destroy()
  const id = (count += 1)
  const one = { socket, credit: ${WINDOW_BYTES} }
  live.set(id, one)
  send(id, ${KINDS.open}, number(port))
  socket.setNoDelay(true)
  socket.on('data', (chunk) => {
    one.credit -= chunk.length
    if (one.credit <= 0) socket.pause()
    send(id, ${KINDS.data}, chunk)
  })
  socket.on('end', () => send(id, ${KINDS.end}))
  socket.on('error', () => socket.destroy())
  socket.on('close', () => { if (live.delete(id)) send(id, ${KINDS.close}) })
}
const handle = (id, kind, data) => {
  const one = live.get(id)
  if (one === undefined) return
  if (kind === ${KINDS.data}) one.socket.write(data, () => send(id, ${KINDS.credit}, number(data.length)))
  if (kind === ${KINDS.end}) one.socket.end()
  if (kind === ${KINDS.close}) { live.delete(id); one.socket.destroy() }
  if (kind === ${KINDS.credit}) { one.credit += data.readUInt32BE(0); if (one.credit > 0) one.socket.resume() }
}
let rest = Buffer.alloc(0)
stdin.on('data', (chunk) => {
  rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk])
  while (rest.length >= ${HEADER_BYTES}) {
    const end = ${HEADER_BYTES} + rest.readUInt32BE(5)
    if (rest.length < end) break
    handle(rest.readUInt32BE(0), rest[4], rest.subarray(${HEADER_BYTES}, end))
    rest = rest.subarray(end)
  }
})
const leave = () => process.exit(0)
stdin.on('end', leave).on('error', leave)
stdout.on('error', leave)
let left = process.argv.length - 1
const begun = Date.now()
for (const port of process.argv.slice(1).map(Number)) {
  const server = net.createServer({ allowHalfOpen: true }, accept(port))
  const listen = () => server.listen({ port, host: '127.0.0.1', backlog: 511 })
  server.on('listening', () => { if ((left -= 1) === 0) send(0, ${KINDS.ready}) })
  server.on('error', (error) => {
    if (Date.now() - begun < 10000) return setTimeout(listen, 100)
    send(0, ${KINDS.failed}, Buffer.from(error.message))
    setTimeout(leave, 100)
  })
  listen()
}
`

/** Ends with 0 when nothing can be reached at an address, with 9 when it can. */
export const PROBE = `
const [host, port] = process.argv.slice(1)
const socket = require('node:net').connect({ host, port: Number(port) })
socket.once('connect', () => process.exit(9)).once('error', () => process.exit(0))
setTimeout(() => process.exit(0), 2000)
`
