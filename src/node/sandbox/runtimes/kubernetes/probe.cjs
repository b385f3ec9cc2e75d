// Arguments: host, port. Exits with 9 if the address accepts a connection, with 0 if it cannot be reached.
const [host, port] = process.argv.slice(1)
const socket = require('node:net').connect({ host, port: Number(port) })
socket.once('connect', () => process.exit(9)).once('error', () => process.exit(0))
setTimeout(() => process.exit(0), 2000)
