import { sql } from 'kysely'
import type { Database } from '../../database.ts'

/**
 * What may be new of a task. `moved`: what its sessions do. `ended`: one of them ended, too. `over`: anything, also that the
 * task itself is over.
 */
export type News = 'moved' | 'ended' | 'over'

/** Tasks of which something may be new; `all` after a break in which anything may have been missed. */
export type ChangeCall = (taskIds: ReadonlySet<string> | 'all', news: News) => void

/**
 * Who waits for news of a task hears here that there may be some. Never too late by much, but it can be missed when a
 * server dies in between: whoever waits looks now and then by itself as well.
 */
export interface Changes extends AsyncDisposable {
  /** Without a word of what it is, anything may be new. */
  announce(taskIds: Iterable<string>, news?: News): void
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
  const tell: ChangeCall = (taskIds, news) => {
    for (const call of calls) call(taskIds, news)
  }
  const sender = crypto.randomUUID()
  let gathered = new Set<string>()
  let most: News = 'moved'
  let timer: NodeJS.Timeout | undefined
  let sending: Promise<unknown> = Promise.resolve()
  const send = (): void => {
    timer = undefined
    const payload = toPayload(sender, gathered, most)
    gathered = new Set()
    most = 'moved'
    // One that is lost is made good by whoever waits.
    sending = sql`select pg_notify(${CHANGE_CHANNEL}, ${payload})`.execute(database.db).catch(() => undefined)
  }
  const isShared = database.kind === 'postgres'
  const stop = isShared
    ? await database.listen(CHANGE_CHANNEL, (payload) => {
        const [from, ids, news] = payload === '' ? [] : (JSON.parse(payload) as [string, string[] | 'all', News?])
        if (from !== sender) tell(ids === undefined || ids === 'all' ? 'all' : new Set(ids), news ?? 'over')
      })
    : undefined
  return {
    announce(taskIds, news = 'over') {
      const ids = new Set(taskIds)
      if (ids.size === 0) return
      tell(ids, news)
      if (!isShared) return
      if (most === 'moved' || news === 'over') most = news
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

function toPayload(sender: string, ids: ReadonlySet<string>, news: News): string {
  const payload = JSON.stringify([sender, [...ids], news])
  return Buffer.byteLength(payload) <= MOST_BYTES ? payload : JSON.stringify([sender, 'all', news])
}
