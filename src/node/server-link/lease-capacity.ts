import type { StageWidths } from '../session/stages.ts'

export interface LeaseCapacity {
  slots: number
  /** How many of the slots could not run a session at once. The server prefers nodes that could. */
  ahead: number
}

/**
 * Returns how many sessions a node may lease: enough that a prepared session is ready whenever a run slot becomes free, and
 * no more, because a session that waits on this node cannot run on another. `busy` counts sessions before POST_RUN.
 */
export function countCapacity(
  { init, ready, run }: Pick<StageWidths, 'init' | 'ready' | 'run'>,
  busy: number,
  max = Infinity,
): LeaseCapacity {
  const slots = Math.max(0, Math.min(run + ready + init, max) - busy)
  return { slots, ahead: Math.max(0, slots - Math.max(0, run - busy)) }
}
