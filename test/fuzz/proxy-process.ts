/** An allow-list proxy in a separate process. Every allowed name resolves to this machine. Prints its address. */
import { createServer, type AddressInfo } from 'node:net'
import { AllowProxy } from '../../src/node/sandbox/linux/network/allow-proxy.ts'

const proxy = new AllowProxy(['good.example'], {
  resolve: async () => [{ address: '127.0.0.1', family: 4 }],
  isPrivate: () => false,
})
const server = createServer((socket) => {
  socket.on('error', () => socket.destroy())
  proxy.accept(socket)
})
server.listen(0, '127.0.0.1', () => {
  process.stdout.write(`http://127.0.0.1:${(server.address() as AddressInfo).port}\n`)
})
