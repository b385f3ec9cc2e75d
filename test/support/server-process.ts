/** A rollout server in a separate process. Runs until it is killed; its settings are one JSON argument. */
import pino from 'pino'
import { systemClock } from '../../src/lib/async/clock.ts'
import { randomIds } from '../../src/lib/random-ids.ts'
import { RolloutServer, type ServerOptions } from '../../src/server/server.ts'

const given = JSON.parse(process.argv[2] ?? '{}') as Pick<ServerOptions, 'database' | 'filesDir'> &
  Partial<ServerOptions>
const server = await RolloutServer.start({
  listen: { host: '127.0.0.1', port: 0 },
  access: { tokens: [], isOpen: true },
  callbacks: {},
  clock: systemClock,
  monotonic: () => performance.now(),
  ids: randomIds(Date.now),
  logger: pino({ level: 'error' }, pino.destination(2)),
  ...given,
})
process.stdout.write(`${JSON.stringify({ url: server.url })}\n`)
process.on('SIGTERM', () => void server[Symbol.asyncDispose]().then(() => process.exit()))
process.on('message', (message) => {
  if (message === 'memory') process.send?.({ rss: process.memoryUsage.rss() })
})
