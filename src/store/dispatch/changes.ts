import { sql } from 'kysely'
import type { Database } from '../database.ts'

/** Tasks of which something may be new; `all` after a break in which anything may have been missed. */
export type ChangeCall = (taskIds: ReadonlySet<string> | 'all') => void

/**
 * Who waits for news of a task hears here that there may be some. Never too late by much, but it can be missed when a
 * server dies in between: whoever waits looks now and then by itself as well.
 */
export interface Changes extends AsyncDisposable {
  announce(taskIds: Iterable<string>): void
  /** What it returns ends it. */
  subscribe(call: ChangeCall): () => void
}

const CHANGE_CHANNEL = 'polar_changes'
/** Announcements to the other servers are gathered for so long. */
const GATHER_MS = 20
/** PostgreSQL takes 8,000 bytes; with more, all are said to have changed. */
const MOST_BYTES = 7000

/**
 * Within this process at once. To other servers on the same database a few at a time, and beside the transactions: a
 * transaction that announces something keeps all others from committing until it is on the disk.
 */
export async function openChanges(database: Database): Promise<Changes> {
  const calls = new Set<ChangeCall>()
  const tell: ChangeCall = (taskIds) => {
    for (const call of calls) call(taskIds)
  }
  const sender = crypto.randomUUID()
  let gathered = new Set<string>()
  let timer: NodeJS.Timeout | undefined
  let sending: Promise<unknown> = Promise.resolve()
  const send = (): void => {
    timer = undefined
    const payload = toPayload(sender, gathered)
    gathered = new Set()
    // One that is lost is made good by whoever waits.
    sending = sql`select pg_notify(${CHANGE_CHANNEL}, ${payload})`.execute(database.db).catch(() => undefined)
  }
  const isShared = database.kind === 'postgres'
  const stop = isShared
    ? await database.listen(CHANGE_CHANNEL, (payload) => {
        const [from, ids] = payload === '' ? [] : (JSON.parse(payload) as [string, string[] | 'all'])
        if (from !== sender) tell(ids === undefined || ids === 'all' ? 'all' : new Set(ids))
      })
    : undefined
  return {
    announce(taskIds) {
      const ids = new Set(taskIds)
      if (ids.size === 0) return
      tell(ids)
      if (!isShared) return
      for (const id of ids) gathered.add(id)
      timer ??= setTimeout(send, GATHER_MS)
    },
    subscribe(call) {
      calls.add(call)
      return () => calls.delete(call)
    },
    async [Symbol.asyncDispose]() {
      clearTimeout(timer)
      if (timer !== undefined) send()
      await sending
      await stop?.()
    },
  }
}

function toPayload(sender: string, ids: ReadonlySet<string>): string {
  const payload = JSON.stringify([sender, [...ids]])
  return Buffer.byteLength(payload) <= MOST_BYTES ? payload : JSON.stringify([sender, 'all'])
}
