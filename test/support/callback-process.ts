/** Process with a server's callback sender. Runs until it is killed. */
import pino from 'pino'
import { systemClock } from '../../src/lib/async/clock.ts'
import { CallbackSender } from '../../src/server/callbacks/callback-sender.ts'
import { randomIds } from '../../src/lib/random-ids.ts'
import { Dispatch } from '../../src/store/dispatch/port.ts'

const [dir = '', body = ''] = process.argv.slice(2)
const monotonic = () => performance.now()
const dispatch = await Dispatch.open({ dir }, { clock: systemClock, monotonic, ids: randomIds(Date.now) })
export const sender = new CallbackSender(
  { secret: 'whsec-of-the-test' },
  {
    dispatch,
    clock: systemClock,
    logger: pino({ level: 'silent' }),
    openTaskResult: async () =>
      (async function* () {
        yield Buffer.from(body)
      })(),
  },
)
