import type { Turn } from '../../model/turn.ts'

/** Oldest first. */
export function byAge(a: Turn, b: Turn): number {
  return a.startedAt - b.startedAt || a.index - b.index || (a.id < b.id ? -1 : Number(a.id > b.id))
}

/** Higher where the harness is more likely to have received the answer. */
export function deliveryRank({ delivery }: Turn): number {
  return delivery === 'delivered' ? 2 : Number(delivery === 'unknown')
}
