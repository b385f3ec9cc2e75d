import type { Turn } from '../../model/turn.ts'

/** Sorts turns by age, oldest first. */
export function byAge(a: Turn, b: Turn): number {
  return a.startedAt - b.startedAt || a.index - b.index || (a.id < b.id ? -1 : Number(a.id > b.id))
}

/** Returns a higher rank if the harness more probably received the answer. */
export function deliveryRank({ delivery }: Turn): number {
  return delivery === 'delivered' ? 2 : Number(delivery === 'unknown')
}
