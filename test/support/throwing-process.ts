/**
 * Server, allow-list proxy, sandbox socket and gateway process of a node, with listeners that throw. Prints their
 * addresses, then serves until it is killed: throwing-process.ts DIR
 */
import { pathToFileURL } from 'node:url'
import { join } from 'node:path'
import pino from 'pino'
import { openGateway } from '../../src/compose/open-gateway.ts'
import { surviveErrors } from '../../src/compose/survive-errors.ts'
import { AllowProxy } from '../../src/node/sandbox/linux/network/allow-proxy.ts'
import { listenHere } from '../../src/node/sandbox/linux/network/sandbox-sockets.ts'
import { listen } from '../../src/server/listen/listen.ts'

const [dir = ''] = process.argv.slice(2)
const throwing = pathToFileURL(join(import.meta.dirname, 'throwing-listeners.ts')).href
const logger = pino({ level: 'error' }, pino.destination(2))
surviveErrors(logger)

process.env['NODE_OPTIONS'] = `--import=${throwing}`
const gateway = await openGateway({
  count: 1,
  settings: {
    host: '127.0.0.1',
    dir,
    durability: 'process',
    lockWaitMs: 0,
    quirks: [],
    // No process listens on this port.
    upstream: [{ kind: 'vllm', url: 'http://127.0.0.1:1', model: 'tiny' }],
    engine: { kind: 'vllm', url: 'http://127.0.0.1:1', model: 'tiny' },
  },
  logger,
})
await import(throwing)
const session = await gateway.openSession()
const server = await listen(
  {
    fetch: (request) => {
      if (!request.url.endsWith('/late')) return new Response('served')
      setImmediate(() => {
        throw new Error('thrown late')
      })
      return new Promise<Response>(() => {})
    },
  },
  { host: '127.0.0.1', port: 0 },
)
const sandboxSocket = await listenHere(0, { isPaused: true, accept: (socket) => gateway.accept(session.id, socket) })
const proxy = await listenHere(0, new AllowProxy(['allowed.example']))
void Promise.reject(new Error('rejected'))
process.stdout.write(
  `${JSON.stringify({ server: Number(new URL(server.url).port), gateway: Number(new URL(gateway.url).port), door: sandboxSocket.port, proxy: proxy.port })}\n`,
)
