/** A server that submits, leases, expires, cancels and accepts until it is killed, and prints the results. */
import { openDatabase } from '../../src/store/database.ts'
import { DispatchDriver } from './dispatch-driver.ts'

const [place = '', name = ''] = process.argv.slice(2)
const database = await openDatabase(place.startsWith('postgres:') ? { url: place } : { dir: place })
const driver = new DispatchDriver(database)
process.stdout.write('ready\n')

for (let round = 0; ; round += 1) {
  const id = `${name}-${round}`
  await driver.submit(id, 4, { callback_url: 'http://trainer.test/' })
  process.stdout.write(`submitted ${id}\n`)
  const leases = await driver.take(5, name)
  await Promise.all(
    leases.map(async (lease, i) => {
      if (round % 5 === 4 && i === 0) return void (await driver.dispatch.release(name, [lease]))
      const code = (round + i) % 3 === 0 ? 'runtime.gone' : undefined
      const answer = await driver.end(lease, code, { nodeId: name })
      if (answer.kind === 'accepted') process.stdout.write(`accepted ${lease.sessionId}/${lease.attempt}\n`)
    }),
  )
  if (round % 7 === 6) await driver.dispatch.cancelTask(id)
  if (round % 9 === 8) await driver.dispatch.updateTask(id, { priority: 50, earlyStop: 2 })
  if (round % 5 === 3) await driver.dispatch.retryTask(`${name}-${round - 3}`, ['ERROR', 'CANCELLED'])
  if (round % 13 === 12) await driver.dispatch.cancelTask(`${name}-${round + 3}`, { registerIfMissing: true })
  if (round % 11 === 10) await driver.dispatch.loseNode(name)
}
