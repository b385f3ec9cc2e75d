// Arguments: folder of sockets, ports. Runs inside the container: forwards every connection to a port to the unix socket of
// that name.
const net = require('node:net')
const [folder, ...ports] = process.argv.slice(1)
let left = ports.length
for (const port of ports) {
  net
    .createServer({ allowHalfOpen: true }, (near) => {
      const far = net.connect({ path: `${folder}/${port}`, allowHalfOpen: true })
      for (const [from, to] of [
        [near, far],
        [far, near],
      ])
        from.on('error', () => to.destroy()).pipe(to)
      near.once('close', () => far.destroy())
      far.once('close', () => near.destroy())
    })
    .listen(Number(port), '127.0.0.1', () => {
      if ((left -= 1) === 0) process.stdout.write('ready\n')
    })
}
