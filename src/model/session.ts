import * as z from 'zod'
import { Failure } from './failure.ts'
import { SessionId } from './ids.ts'
import { Trajectory } from './trajectory.ts'
import type { Turn } from './turn.ts'

/** NVIDIA Polar's statuses, and CANCELLED, which NVIDIA Polar reports as ERROR. */
export const SessionStatus = z.enum([
  'REGISTERED',
  'INITIALIZING',
  'READY',
  'RUNNING',
  'POST_RUN',
  'BUILDING',
  'EVALUATING',
  'COMPLETED',
  'ERROR',
  'TIMEOUT',
  'CANCELLED',
])
export type SessionStatus = z.infer<typeof SessionStatus>

const TERMINAL: ReadonlySet<SessionStatus> = new Set(['COMPLETED', 'ERROR', 'TIMEOUT', 'CANCELLED'])

export function isTerminal(status: SessionStatus): boolean {
  return TERMINAL.has(status)
}

/** Default limit of the memory that a gateway keeps to continue the conversations of one session. */
export const SESSION_MEMORY_MB = 16

/** Default limit of the call log of one session. */
export const SESSION_LOG_MB = 1024

/** Default limit of the calls of one session that are in flight at the same time. */
export const SESSION_CALLS = 64

/** Milliseconds in each stage; absent if the session did not reach it. */
export const SessionTiming = z.object({
  register_to_init_queue_ms: z.number().nullish(),
  init_ms: z.number().nullish(),
  ready_queue_ms: z.number().nullish(),
  run_ms: z.number().nullish(),
  postrun_ms: z.number().nullish(),
  build_ms: z.number().nullish(),
  eval_ms: z.number().nullish(),
  /** For a grading sandbox that was started early: its idle time, and the time that grading saved. */
  eval_prewarm_idle_ms: z.number().nullish(),
  eval_prewarm_saved_ms: z.number().nullish(),
})
export type SessionTiming = z.infer<typeof SessionTiming>

/** Keys of every version of NVIDIA Polar. Its models reject other keys and null values. */
const NVIDIA_TIMING_KEYS = ['register_to_init_queue_ms', 'init_ms', 'run_ms', 'postrun_ms'] as const

/** Returns the timing in the form of NVIDIA Polar's models. */
export function toNvidiaTiming(timing: SessionTiming): SessionTiming {
  return Object.fromEntries(NVIDIA_TIMING_KEYS.flatMap((key) => (timing[key] == null ? [] : [[key, timing[key]]])))
}

/** Returns the status for NVIDIA Polar's models, which have no CANCELLED. */
export function toNvidiaStatus(status: SessionStatus): Exclude<SessionStatus, 'CANCELLED'> {
  return status === 'CANCELLED' ? 'ERROR' : status
}

export const SessionResult = z.object({
  session_id: SessionId,
  task_id: z.string(),
  /** A status of NVIDIA Polar; `polar_status` distinguishes cancelled from failed sessions. */
  status: SessionStatus,
  polar_status: SessionStatus.nullish(),
  trajectory: Trajectory,
  /** Only NVIDIA Polar's four keys. */
  timing: SessionTiming,
  /** All measured stages. */
  polar_timing: SessionTiming.nullish(),
  node_id: z.string().nullish(),
  error: z.string().nullish(),
  /** Not in NVIDIA Polar: the failure; absent if there is none. */
  failure: Failure.nullish(),
  metadata: z.record(z.string(), z.unknown()).default({}),
})
export type SessionResult = z.infer<typeof SessionResult>

/** A recorded session with its turns in order of their start. */
export interface SessionRecord {
  id: string
  /** Unix milliseconds. */
  createdAt: number
  /** Free-form facts about its origin: command, harness, upstream. */
  origin: Readonly<Record<string, unknown>>
  turns: Turn[]
  /** True only if the log was closed and every write succeeded. */
  complete: boolean
  /** Why the record is incomplete; empty if it is complete. */
  incompleteReasons: string[]
}

/** Model calls of a running session that have ended, and the tokens that were sampled in them. */
export interface SessionProgress {
  calls: number
  tokens: number
  /** Oldest policy version that sampled a token; absent if unknown. */
  oldestVersion?: number
}
