import * as z from 'zod'
import { Failure } from './failure.ts'
import { SessionId } from './ids.ts'
import { Trajectory } from './trajectory.ts'
import type { Turn } from './turn.ts'

/** NVIDIA Polar's words, plus CANCELLED, which it reports as an error. */
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

/** Milliseconds spent in each stage; absent when the session never reached it. */
export const SessionTiming = z.object({
  register_to_init_queue_ms: z.number().nullish(),
  init_ms: z.number().nullish(),
  ready_queue_ms: z.number().nullish(),
  run_ms: z.number().nullish(),
  postrun_ms: z.number().nullish(),
  build_ms: z.number().nullish(),
  eval_ms: z.number().nullish(),
  /** A grader's sandbox was made early: how long it stood ready, and how much earlier grading could begin. */
  eval_prewarm_idle_ms: z.number().nullish(),
  eval_prewarm_saved_ms: z.number().nullish(),
})
export type SessionTiming = z.infer<typeof SessionTiming>

/** The keys that every version of NVIDIA Polar has; its models refuse a timing with any other key, and null values. */
const NVIDIA_TIMING_KEYS = ['register_to_init_queue_ms', 'init_ms', 'run_ms', 'postrun_ms'] as const

/** The timing as NVIDIA Polar's models read it. */
export function toNvidiaTiming(timing: SessionTiming): SessionTiming {
  return Object.fromEntries(NVIDIA_TIMING_KEYS.flatMap((key) => (timing[key] == null ? [] : [[key, timing[key]]])))
}

/** The status as NVIDIA Polar's models read it: they have no CANCELLED. */
export function toNvidiaStatus(status: SessionStatus): Exclude<SessionStatus, 'CANCELLED'> {
  return status === 'CANCELLED' ? 'ERROR' : status
}

export const SessionResult = z.object({
  session_id: SessionId,
  task_id: z.string(),
  /** One of NVIDIA Polar's words; `polar_status` tells a cancelled session from a failed one. */
  status: SessionStatus,
  polar_status: SessionStatus.nullish(),
  trajectory: Trajectory,
  /** NVIDIA Polar's four keys only. */
  timing: SessionTiming,
  /** All stages that were measured. */
  polar_timing: SessionTiming.nullish(),
  node_id: z.string().nullish(),
  error: z.string().nullish(),
  /** Ours: what failed and whose doing it was; absent when nothing did. */
  failure: Failure.nullish(),
  metadata: z.record(z.string(), z.unknown()).default({}),
})
export type SessionResult = z.infer<typeof SessionResult>

/** A session as recorded: who it was, its turns in starting order, and whether nothing is missing. */
export interface SessionRecord {
  id: string
  /** Unix milliseconds. */
  createdAt: number
  /** Free text about where it came from: command, harness, upstream. */
  origin: Readonly<Record<string, unknown>>
  turns: Turn[]
  /** True only when the log says so itself: closed in order, with every write having succeeded. */
  complete: boolean
  /** Why it is not complete; empty when it is. */
  incompleteReasons: string[]
}
