// Arguments: the constants of relay-protocol.ts as JSON, ports. Runs in a container of its own in the pod: listens on the pod's
// loopback interface and multiplexes all connections over its standard input and output, which the API server forwards to the
// node.
const net = require('node:net')
const { stdin, stdout } = process
const { headerBytes, windowBytes, maxConnections, kinds } = JSON.parse(process.argv[1])
const ports = process.argv.slice(2).map(Number)
const live = new Map()
let count = 0
const send = (id, kind, data = Buffer.alloc(0)) => {
  const head = Buffer.alloc(headerBytes)
  head.writeUInt32BE(id, 0)
  head[4] = kind
  head.writeUInt32BE(data.length, 5)
  stdout.write(Buffer.concat([head, data]))
}
const number = (value) => {
  const bytes = Buffer.alloc(4)
  bytes.writeUInt32BE(value)
  return bytes
}
const accept = (port) => (socket) => {
  if (live.size >= maxConnections) return socket.destroy()
  const id = (count += 1)
  const one = { socket, credit: windowBytes }
  live.set(id, one)
  send(id, kinds.open, number(port))
  socket.setNoDelay(true)
  socket.on('data', (chunk) => {
    one.credit -= chunk.length
    if (one.credit <= 0) socket.pause()
    send(id, kinds.data, chunk)
  })
  socket.on('end', () => send(id, kinds.end))
  socket.on('error', () => socket.destroy())
  socket.on('close', () => {
    if (live.delete(id)) send(id, kinds.close)
  })
}
const handle = (id, kind, data) => {
  const one = live.get(id)
  if (one === undefined) return
  if (kind === kinds.data) one.socket.write(data, () => send(id, kinds.credit, number(data.length)))
  if (kind === kinds.end) one.socket.end()
  if (kind === kinds.close) {
    live.delete(id)
    one.socket.destroy()
  }
  if (kind === kinds.credit) {
    one.credit += data.readUInt32BE(0)
    if (one.credit > 0) one.socket.resume()
  }
}
let rest = Buffer.alloc(0)
stdin.on('data', (chunk) => {
  rest = rest.length === 0 ? chunk : Buffer.concat([rest, chunk])
  while (rest.length >= headerBytes) {
    const end = headerBytes + rest.readUInt32BE(5)
    if (rest.length < end) break
    handle(rest.readUInt32BE(0), rest[4], rest.subarray(headerBytes, end))
    rest = rest.subarray(end)
  }
})
const leave = () => process.exit(0)
stdin.on('end', leave).on('error', leave)
stdout.on('error', leave)
let left = ports.length
const begun = Date.now()
for (const port of ports) {
  const server = net.createServer({ allowHalfOpen: true }, accept(port))
  const listen = () => server.listen({ port, host: '127.0.0.1', backlog: 511 })
  server.on('listening', () => {
    if ((left -= 1) === 0) send(0, kinds.ready)
  })
  server.on('error', (error) => {
    if (Date.now() - begun < 10000) return setTimeout(listen, 100)
    send(0, kinds.failed, Buffer.from(error.message))
    setTimeout(leave, 100)
  })
  listen()
}
