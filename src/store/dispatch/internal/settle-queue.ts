import type { Sql } from '../../database.ts'
import type { ChangeKind } from '../types.ts'
import type { AttemptEnding } from './decision.ts'
import { type Settled, settle } from './settle.ts'

interface Waiting {
  ending: AttemptEnding
  resolve(settled: Settled | undefined): void
  reject(error: unknown): void
}

interface Queue {
  waiting: Waiting[]
  isBusy: boolean
}

/** Limits how long the first ending of a batch waits for the last. */
const MAX_BATCH = 32

export type Settle = (taskId: string, ending: AttemptEnding) => Promise<Settled | undefined>

interface SettleDeps {
  queues: number
  now: () => number
  /** Attempts that failed because of infrastructure are queued again after a delay. */
  hasRetryDelay: boolean
  announce: (taskIds: readonly string[], kind: ChangeKind) => void
}

/**
 * Batches endings: those that arrive while a transaction runs share the next transaction, instead of waiting for each
 * other's task lock and disk write. All endings of a task use the same queue. An ending never waits for a batch to fill.
 */
export function createSettleQueues(db: Sql, deps: SettleDeps): Settle {
  const queues = Array.from({ length: deps.queues }, (): Queue => ({ waiting: [], isBusy: false }))
  return (taskId, ending) => {
    const queue = queues[hashOf(taskId) % deps.queues]!
    return new Promise((resolve, reject) => {
      queue.waiting.push({ ending, resolve, reject })
      if (!queue.isBusy) void drain(db, queue, deps)
    })
  }
}

async function drain(db: Sql, queue: Queue, deps: SettleDeps): Promise<void> {
  queue.isBusy = true
  while (queue.waiting.length > 0) await settleBatch(db, queue.waiting.splice(0, MAX_BATCH), deps)
  queue.isBusy = false
}

/** If the batch fails, settles each ending alone, so that one that cannot be written does not fail the others. */
async function settleBatch(db: Sql, batch: readonly Waiting[], deps: SettleDeps): Promise<void> {
  try {
    const endings = batch.map(({ ending }) => ending)
    const answers = await settle(db, endings, { now: deps.now(), hasRetryDelay: deps.hasRetryDelay })
    const settled = answers.filter((answer) => answer !== undefined)
    const toIds = (isOver: boolean): string[] =>
      settled.filter(({ taskStatus }) => (taskStatus !== 'running') === isOver).map(({ taskId }) => taskId)
    deps.announce(toIds(false), 'ended')
    deps.announce(toIds(true), 'over')
    for (const [i, each] of batch.entries()) each.resolve(answers[i])
  } catch (error) {
    const [first, ...others] = batch
    if (others.length === 0) return first?.reject(error)
    for (const each of batch) await settleBatch(db, [each], deps)
  }
}

function hashOf(text: string): number {
  let hash = 0
  for (let i = 0; i < text.length; i += 1) hash = (hash * 31 + text.charCodeAt(i)) | 0
  return Math.abs(hash)
}
