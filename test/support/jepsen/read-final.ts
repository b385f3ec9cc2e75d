import { createHash } from 'node:crypto'
import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { promisify } from 'node:util'
import { zstdDecompress } from 'node:zlib'
import { sql } from 'kysely'
import { type Client, createClient } from '../../../src/client/client.ts'
import { type DatabaseLocation, openDatabase } from '../../../src/store/database.ts'
import { auditTables } from '../dispatch-tables.ts'
import type { FinalState, FinalTask, SeenEvent } from './history.ts'
import { readEvents, toView } from './trainer.ts'
import { toResultFact } from './witness.ts'

export interface Reader {
  serverUrl: string
  token: string
  /** Folder of the server's results, for a trainer with shared storage. */
  filesDir: string
}

/** Reads every task by every route. */
export async function readTasks(taskIds: readonly string[], reader: Reader): Promise<FinalTask[]> {
  const client = createClient({ baseUrl: reader.serverUrl, token: reader.token })
  const summaries = new Map((await listTasks(client)).map((summary) => [summary.task_id, summary]))
  const tasks: FinalTask[] = []
  for (const taskId of taskIds) {
    const summary = summaries.get(taskId)
    if (summary !== undefined) tasks.push(await readTask(client, summary, reader))
  }
  return tasks
}

type Summary = Awaited<ReturnType<typeof listTasks>>[number]

async function listTasks(client: Client) {
  const tasks = []
  // Small pages, to test the cursor too.
  for (let cursor: string | undefined; ;) {
    const page = await client.listTasks({ query: { limit: 7, ...(cursor !== undefined && { cursor }) } })
    tasks.push(...page.tasks)
    if (page.next_cursor === undefined) return tasks
    cursor = page.next_cursor
  }
}

async function readTask(client: Client, summary: Summary, { filesDir }: Reader): Promise<FinalTask> {
  const params = { task_id: summary.task_id }
  const inline = toView(await client.getTask({ params }))
  const stream = (await Array.fromAsync(client.streamTaskResults({ params }))).map((result) => toResultFact(result))
  const { sessions } = await client.listTaskSessions({ params })
  const bySession = await Promise.all(
    sessions.map(async ({ session_id }) => toResultFact(await client.getSessionResult({ params: { session_id } }))),
  )
  return {
    taskId: summary.task_id,
    inline,
    stream,
    bySession,
    references: await readReferences(client, summary.task_id, filesDir),
    sessions: sessions.map(({ session_id, sample, status, attempt, node_id, reward }) => {
      return { sessionId: session_id, sample, status, attempt, nodeId: node_id, reward }
    }),
    counts: {
      samples: summary.num_samples,
      completed: summary.completed_sessions,
      valid: summary.valid_sessions,
      usable: summary.usable_sessions,
      cancelled: summary.cancelled_sessions,
      errored: summary.errored_sessions,
    },
  }
}

async function readReferences(client: Client, taskId: string, filesDir: string): Promise<FinalTask['references']> {
  const references = []
  for (let cursor: string | undefined; ;) {
    const query = { limit: 7, ...(cursor !== undefined && { cursor }) }
    const page = await client.listTaskResults({ params: { task_id: taskId }, query })
    references.push(...page.results)
    if (page.next_cursor === undefined) break
    cursor = page.next_cursor
  }
  return Promise.all(
    references.map(async ({ session_id, attempt, digest, bytes, path }) => {
      const isWhole = await isResultWhole(join(filesDir, path), { digest, bytes, sessionId: session_id })
      return { sessionId: session_id, attempt, digest, isWhole }
    }),
  )
}

const decompress = promisify(zstdDecompress)

async function isResultWhole(
  path: string,
  { digest, bytes, sessionId }: { digest: string; bytes: number; sessionId: string },
): Promise<boolean> {
  try {
    const file = await readFile(path)
    if (file.length !== bytes || `sha256:${createHash('sha256').update(file).digest('hex')}` !== digest) return false
    const result = JSON.parse((await decompress(file)).toString()) as { session_id: string }
    return result.session_id === sessionId
  } catch {
    return false
  }
}

/** Returns the number of unsent callbacks. */
export async function countWaiting({ serverUrl, token }: Reader): Promise<number> {
  const client = createClient({ baseUrl: serverUrl, token })
  return (await client.listCallbacks({ query: { state: 'waiting' } })).callbacks.length
}

const SILENCE_MS = 2000

/** Reads all events until none arrives for a while. */
export async function readAllEvents({ serverUrl, token }: Reader): Promise<SeenEvent[]> {
  const client = createClient({ baseUrl: serverUrl, token })
  const events: SeenEvent[] = []
  const silence = new AbortController()
  let timer = setTimeout(() => silence.abort(), SILENCE_MS)
  for await (const event of readEvents(client, silence.signal)) {
    events.push(event)
    clearTimeout(timer)
    timer = setTimeout(() => silence.abort(), SILENCE_MS)
  }
  return events
}

/** Reads the tables after the server has closed the database. */
export async function readDatabase(place: DatabaseLocation): Promise<FinalState['database']> {
  await using database = await openDatabase(place)
  const { db } = database
  const results = await sql<{ session_id: string; attempt: number; digest: string }>`
    select session_id, attempt, digest from results
  `.execute(db)
  const attempts = await sql<{ session_id: string; attempt: number; node_id: string | null; ending: string }>`
    select session_id, attempt, node_id, ending from attempts
  `.execute(db)
  const events = await sql<{ txid: number; id: number }>`select txid, id from events order by txid, id`.execute(db)
  return {
    problems: await auditTables(database),
    results: results.rows.map(({ session_id, ...row }) => ({ sessionId: session_id, ...row })),
    attempts: attempts.rows.map(({ session_id, node_id, ...row }) => ({
      sessionId: session_id,
      nodeId: node_id,
      ...row,
    })),
    events: events.rows.map(({ txid, id }) => `${txid}-${id}`),
  }
}
