import type { StageWidths } from '../session/stages.ts'

export interface LeaseRoom {
  slots: number
  /** Of these: would only wait here. Another node that could run them now should have them first. */
  ahead: number
}

/**
 * Enough that the next is being made ready, or stands ready, whenever a place becomes free, and no more: what waits here
 * cannot be run elsewhere. `busy` are those that have not ended running yet.
 */
export function countRoom(
  { init, ready, run }: Pick<StageWidths, 'init' | 'ready' | 'run'>,
  busy: number,
  most = Infinity,
): LeaseRoom {
  const slots = Math.max(0, Math.min(run + ready + init, most) - busy)
  return { slots, ahead: Math.max(0, slots - Math.max(0, run - busy)) }
}
