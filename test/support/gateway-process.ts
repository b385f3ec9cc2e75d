/** A gateway in a separate process. Prints the URL of its session, then serves until it is killed. */
import pino from 'pino'
import { Gateway } from '../../src/gateway/gateway.ts'
import { createVllm } from '../../src/gateway/upstreams/vllm.ts'
import { randomIds } from '../../src/lib/random-ids.ts'
import { createCallLogStore } from '../../src/store/call-log/store.ts'

const [baseUrl = '', dir = ''] = process.argv.slice(2)
const gateway = await Gateway.start({
  upstream: createVllm({ baseUrl, model: 'tiny' }),
  store: createCallLogStore({ dir, now: Date.now }),
  ids: randomIds(Date.now),
  now: Date.now,
  logger: pino({ level: 'warn' }, pino.destination(2)),
})
process.stdout.write(`${JSON.stringify(await gateway.openSession())}\n`)
