import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { sql } from 'kysely'
import { afterAll, describe, expect, test } from 'vitest'
import { type Database, openDatabase } from '../../src/store/database.ts'
import { copyDatabase } from '../support/database-template.ts'
import { auditTables } from '../support/dispatch-tables.ts'
import { DispatchDriver } from '../support/dispatch-driver.ts'
import { startPostgres, whyNoPostgres } from '../support/postgres.ts'

const server = join(import.meta.dirname, '../support/dispatch-process.ts')
const scratch = await mkdtemp(join(tmpdir(), 'polar-dispatch-crash-'))
afterAll(() => rm(scratch, { recursive: true, force: true }))

/** Runs a server process, kills it with SIGKILL after `count` confirmed steps, and returns all steps that it confirmed. */
async function workUntilKilled(store: string, name: string, count: number): Promise<string[]> {
  const child = spawn(process.execPath, [server, store, name], { stdio: ['ignore', 'pipe', 'inherit'] })
  const lines: string[] = []
  for await (const line of createInterface(child.stdout)) {
    if (line !== 'ready') lines.push(line)
    if (lines.length === count) await kill(child)
  }
  return lines
}

async function kill(child: ChildProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null) return
  child.kill('SIGKILL')
  await once(child, 'exit')
}

/** Asserts that every confirmed step is stored in full, and every other step in full or not at all. */
async function expectWhole(database: Database, confirmed: readonly string[]): Promise<void> {
  expect(await auditTables(database)).toEqual([])
  const tasks = await database.db.selectFrom('tasks').select('id').execute()
  const results = await database.db.selectFrom('results').select(['session_id', 'attempt']).execute()
  const known = new Set([
    ...tasks.map(({ id }) => `submitted ${id}`),
    ...results.map(({ session_id, attempt }) => `accepted ${session_id}/${attempt}`),
  ])
  expect(confirmed.filter((line) => !known.has(line))).toEqual([])
}

async function stopsEarly(database: Database, sessionId: string): Promise<boolean> {
  const found = await database.db
    .selectFrom('sessions')
    .innerJoin('tasks', 'tasks.id', 'sessions.task_id')
    .select(['tasks.status', 'tasks.early_stop', 'tasks.usable'])
    .where('sessions.id', '=', sessionId)
    .executeTakeFirstOrThrow()
  return found.status === 'completed' && found.early_stop !== null && found.usable >= found.early_stop
}

/** Ends all open sessions and asserts that the tables are consistent. */
async function finish(database: Database): Promise<void> {
  const driver = new DispatchDriver(database)
  await driver.pass(3 * driver.leaseMs)
  for (let leases = await driver.take(50); leases.length > 0; leases = await driver.take(50)) {
    for (const lease of leases) {
      const answer = await driver.end(lease)
      // An early stop of the task may have ended this session already.
      const isExpected = answer.kind === 'accepted' || (await stopsEarly(database, lease.sessionId))
      expect([answer, isExpected]).toEqual([answer, true])
    }
  }
  expect(await database.db.selectFrom('tasks').select('id').where('status', '=', 'running').execute()).toEqual([])
  expect(await auditTables(database)).toEqual([])
}

test('after kill -9 of an embedded server every step is stored in full or not at all', async () => {
  const dir = join(scratch, 'embedded')
  await copyDatabase(dir)
  const confirmed: string[] = []
  for (const count of [3, 17, 40, 61]) {
    confirmed.push(...(await workUntilKilled(dir, `r${count}`, count)))
    await using database = await openDatabase({ dir })
    await expectWhole(database, confirmed)
  }
  await using database = await openDatabase({ dir })
  await finish(database)
})

test('a directory that is in use cannot be opened again, and the error names the process that uses it', async () => {
  const dir = join(scratch, 'locked')
  await copyDatabase(dir)
  await using first = await openDatabase({ dir })
  expect(first.kind).toBe('embedded')
  await expect(openDatabase({ dir })).rejects.toMatchObject({
    code: 'store.unavailable',
    message: expect.stringContaining(`Process ${process.pid}`),
  })
})

const reason = whyNoPostgres()
describe('on PostgreSQL', () => {
  if (reason !== undefined) {
    test('kill -9 of servers', (context) => context.skip(reason))
    return
  }

  test('three servers share a database and are killed one after another; no step is lost or applied twice', async () => {
    await using postgres = await startPostgres()
    const url = await postgres.createDatabase('shared')
    const confirmed: string[] = []
    for (const round of [1, 2]) {
      const servers = ['a', 'b', 'c'].map((name, i) => workUntilKilled(url, `${name}${round}`, 30 + 25 * i))
      confirmed.push(...(await Promise.all(servers)).flat())
    }
    await using database = await openDatabase({ url })
    await expectWhole(database, confirmed)
    await finish(database)
  })

  test('after a crash of PostgreSQL all confirmed results are stored, and servers continue', async () => {
    await using postgres = await startPostgres({ fsync: true })
    await using database = await openDatabase({ url: await postgres.createDatabase('crashing') })
    const driver = new DispatchDriver(database)
    await driver.submit('t', 200)
    const leases = await driver.take(200)
    const answers = Promise.allSettled(leases.map((lease) => driver.end(lease)))
    await driver.end(leases[0]!).catch(() => undefined)
    await postgres.crash()
    const settled = await answers
    expect(await auditTables(database)).toEqual([])
    for (const [i, lease] of leases.entries()) {
      const again = await driver.end(lease)
      // A result without a response may have been accepted; a result with a response must have been.
      if (settled[i]?.status === 'fulfilled') expect(again.kind).toBe('duplicate')
      else expect(['accepted', 'duplicate']).toContain(again.kind)
    }
    expect(await auditTables(database)).toEqual([])
  })

  test('servers that start concurrently create the tables once; tables of a newer version are rejected', async () => {
    await using postgres = await startPostgres()
    const url = await postgres.createDatabase('fresh')
    const databases = await Promise.all(Array.from({ length: 6 }, () => openDatabase({ url, connections: 2 })))
    const { db } = databases[0]!
    expect(await db.selectFrom('policy').selectAll().execute()).toHaveLength(1)
    await sql`insert into polar_migrations values ('9999-from-the-future', '')`.execute(db)
    await expect(openDatabase({ url })).rejects.toMatchObject({ code: 'store.newer-schema' })
    for (const database of databases) await database[Symbol.asyncDispose]()
  })

  test('a reader of events misses none while many clients write concurrently', async () => {
    await using postgres = await startPostgres()
    const url = await postgres.createDatabase('events')
    await using database = await openDatabase({ url })
    await using other = await openDatabase({ url })
    const drivers = [new DispatchDriver(database), new DispatchDriver(other)]
    const { readEvents } = await import('../../src/store/dispatch/queries/events.ts')
    let isDone = false
    const reading = (async () => {
      const seen: string[] = []
      for (let cursor: string | undefined, wasDone = false; ;) {
        const { events, next } = await readEvents(database.db, { after: cursor, limit: 7 })
        seen.push(...events.map((event) => event.cursor))
        cursor = next
        if (events.length === 0 && wasDone) return seen
        if (events.length === 0) wasDone = isDone
      }
    })()
    await Promise.all(
      drivers.flatMap((driver, d) =>
        Array.from({ length: 8 }, async (_, worker) => {
          for (let i = 0; i < 15; i += 1) {
            await driver.submit(`t-${d}-${worker}-${i}`, 2)
            for (const lease of await driver.take(2)) await driver.end(lease)
          }
        }),
      ),
    )
    isDone = true
    const all = await database.db.selectFrom('events').select(['txid', 'id']).orderBy('txid').orderBy('id').execute()
    expect(await reading).toEqual(all.map(({ txid, id }) => `${txid}-${id}`))
  })
})
