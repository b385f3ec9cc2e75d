// Arguments: backlog, ports. Runs in the network namespace of a sandbox: listens on each port, sends the listening sockets to
// its parent process and exits when the parent disconnects.
const [backlog, ...ports] = process.argv.slice(1).map(Number)
for (const port of ports) {
  const server = require('node:net').createServer()
  server.on('error', (error) => process.send({ port, error: error.message }, () => process.exit(1)))
  server.listen({ port, host: '127.0.0.1', backlog }, () => {
    process.send({ port }, server)
  })
}
setTimeout(() => process.exit(1), 20000)
process.on('disconnect', () => process.exit(0))
