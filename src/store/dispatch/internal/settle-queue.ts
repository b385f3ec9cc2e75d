import type { Sql } from '../../database.ts'
import type { News } from './changes.ts'
import { type AttemptEnding, type Settled, settle } from './settle.ts'

interface Waiting {
  ending: AttemptEnding
  resolve(settled: Settled | undefined): void
  reject(error: unknown): void
}

interface Lane {
  waiting: Waiting[]
  isBusy: boolean
}

/** More would make the first of them wait for the last. */
const MOST_AT_ONCE = 32

export type Settle = (taskId: string, ending: AttemptEnding) => Promise<Settled | undefined>

interface LaneDeps {
  lanes: number
  now: () => number
  /** What infrastructure spoilt is not queued again at once. */
  isRestful: boolean
  /** These have changed. */
  announce: (taskIds: readonly string[], news: News) => void
}

/**
 * Ends attempts together that come together. Those of one task would otherwise wait for each other, each for the disk;
 * here the ones that come while a transaction is under way share the next one. A task's always go down the same lane.
 * Nothing is ever held back to wait for company.
 */
export function createSettleLanes(db: Sql, deps: LaneDeps): Settle {
  const lanes = Array.from({ length: deps.lanes }, (): Lane => ({ waiting: [], isBusy: false }))
  return (taskId, ending) => {
    const lane = lanes[spread(taskId, deps.lanes)]!
    return new Promise((resolve, reject) => {
      lane.waiting.push({ ending, resolve, reject })
      if (!lane.isBusy) void drain(db, lane, deps)
    })
  }
}

async function drain(db: Sql, lane: Lane, deps: LaneDeps): Promise<void> {
  lane.isBusy = true
  while (lane.waiting.length > 0) await settleTogether(db, lane.waiting.splice(0, MOST_AT_ONCE), deps)
  lane.isBusy = false
}

/** When that fails each is tried alone, so that one that cannot be written does not take its neighbours with it. */
async function settleTogether(db: Sql, batch: readonly Waiting[], deps: LaneDeps): Promise<void> {
  try {
    const endings = batch.map(({ ending }) => ending)
    const answers = await settle(db, endings, { now: deps.now(), isRestful: deps.isRestful })
    const settled = answers.filter((answer) => answer !== undefined)
    const toIds = (isOver: boolean): string[] =>
      settled.filter(({ taskStatus }) => (taskStatus !== 'running') === isOver).map(({ taskId }) => taskId)
    deps.announce(toIds(false), 'ended')
    deps.announce(toIds(true), 'over')
    for (const [i, each] of batch.entries()) each.resolve(answers[i])
  } catch (error) {
    const [first, ...others] = batch
    if (others.length === 0) return first?.reject(error)
    for (const each of batch) await settleTogether(db, [each], deps)
  }
}

/** The same lane for the same text, and all lanes about as often. */
function spread(text: string, count: number): number {
  let hash = 0
  for (let i = 0; i < text.length; i += 1) hash = (hash * 31 + text.charCodeAt(i)) | 0
  return Math.abs(hash) % count
}
