/** A server's sender of callbacks, until it is killed. */
import pino from 'pino'
import { systemClock } from '../../src/lib/async/clock.ts'
import { startCallbacks } from '../../src/server/callbacks/callback-pump.ts'
import { openDatabase } from '../../src/store/database.ts'

const [dir = '', body = ''] = process.argv.slice(2)
const database = await openDatabase({ dir })
startCallbacks(
  { secret: 'whsec-of-the-test' },
  {
    db: database.db,
    clock: systemClock,
    logger: pino({ level: 'silent' }),
    openTaskResult: async () =>
      (async function* () {
        yield Buffer.from(body)
      })(),
  },
)
