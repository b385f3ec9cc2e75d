import { sql } from 'kysely'
import type { Database } from '../../database.ts'
import type { ChangeKind, ChangeListener } from '../types.ts'

/**
 * Notifies listeners that tasks may have changed, in this process and on other servers. Notifications arrive within
 * milliseconds, but can be lost when a server dies: listeners also poll.
 */
export interface Changes extends AsyncDisposable {
  /** Default kind: `over`. */
  announce(taskIds: Iterable<string>, kind?: ChangeKind): void
  /** Returns the function that unsubscribes. */
  subscribe(listener: ChangeListener): () => void
}

const CHANGE_CHANNEL = 'polar_changes'
/** Announcements to other servers are batched for this long. */
const BATCH_MS = 20
/** PostgreSQL limits a payload to 8,000 bytes; a longer list of ids is sent as `all`. */
const MAX_PAYLOAD_BYTES = 7000

/**
 * Announces to this process at once. Announces to other servers on the same database in batches, outside the transactions:
 * a transaction with a `pg_notify` holds a global lock while it commits.
 */
export async function openChanges(database: Database): Promise<Changes> {
  const listeners = new Set<ChangeListener>()
  const notify: ChangeListener = (taskIds, kind) => {
    for (const listener of listeners) listener(taskIds, kind)
  }
  const sender = crypto.randomUUID()
  let batch = new Set<string>()
  let batchKind: ChangeKind = 'moved'
  let timer: NodeJS.Timeout | undefined
  let sending: Promise<unknown> = Promise.resolve()
  const send = (): void => {
    timer = undefined
    const payload = toPayload(sender, batch, batchKind)
    batch = new Set()
    batchKind = 'moved'
    // Listeners poll, so a lost notification only delays them.
    sending = sql`select pg_notify(${CHANGE_CHANNEL}, ${payload})`.execute(database.db).catch(() => undefined)
  }
  const isShared = database.kind === 'postgres'
  const stop = isShared
    ? await database.listen(CHANGE_CHANNEL, (payload) => {
        const [from, ids, kind] = payload === '' ? [] : (JSON.parse(payload) as [string, string[] | 'all', ChangeKind?])
        if (from !== sender) notify(ids === undefined || ids === 'all' ? 'all' : new Set(ids), kind ?? 'over')
      })
    : undefined
  return {
    announce(taskIds, kind = 'over') {
      const ids = new Set(taskIds)
      if (ids.size === 0) return
      notify(ids, kind)
      if (!isShared) return
      if (batchKind === 'moved' || kind === 'over') batchKind = kind
      for (const id of ids) batch.add(id)
      timer ??= setTimeout(send, BATCH_MS)
    },
    subscribe(listener) {
      listeners.add(listener)
      return () => listeners.delete(listener)
    },
    async [Symbol.asyncDispose]() {
      clearTimeout(timer)
      if (timer !== undefined) send()
      await sending
      await stop?.()
    },
  }
}

function toPayload(sender: string, ids: ReadonlySet<string>, kind: ChangeKind): string {
  const payload = JSON.stringify([sender, [...ids], kind])
  return Buffer.byteLength(payload) <= MAX_PAYLOAD_BYTES ? payload : JSON.stringify([sender, 'all', kind])
}
