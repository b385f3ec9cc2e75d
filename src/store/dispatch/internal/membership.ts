import type { NodeMembership } from '../types.ts'

/** Both parameters are null if the node does not exist. */
export function toMembership(isDraining: boolean | null, isReplaced: boolean | null): NodeMembership {
  if (isDraining === null) return 'unknown'
  if (isReplaced) return 'replaced'
  return isDraining ? 'draining' : 'member'
}
