import type { SessionRecord } from '../../model/session.ts'
import { outcomeOf, type Turn } from '../../model/turn.ts'
import { formatTable } from './table.ts'

/** Summary of a call, counted from the captured ids. */
interface CallRow {
  index: number
  turn_id: string
  outcome: string
  model: string
  stream: boolean
  prompt_tokens: number
  sampled_tokens: number
  first_token_ms: number | null
  duration_ms: number | null
  finish: string
  grade: string | null
  delivery: string
  failure: string | null
}

interface SessionSummary {
  session_id: string
  created_at: string
  complete: boolean
  incomplete_reasons: string[]
  calls: CallRow[]
  totals: { calls: number; prompt_tokens: number; sampled_tokens: number; exact_calls: number }
}

export function toSummary(session: SessionRecord): SessionSummary {
  const calls = session.turns.map(toRow)
  return {
    session_id: session.id,
    created_at: new Date(session.createdAt).toISOString(),
    complete: session.complete,
    incomplete_reasons: session.incompleteReasons,
    calls,
    totals: {
      calls: calls.length,
      prompt_tokens: sum(calls, (call) => call.prompt_tokens),
      sampled_tokens: sum(calls, (call) => call.sampled_tokens),
      exact_calls: calls.filter((call) => call.grade === 'exact').length,
    },
  }
}

export function formatCallTable(session: SessionRecord): string {
  const { calls, totals } = toSummary(session)
  const exact = `${totals.exact_calls}/${totals.calls} exact`
  return formatTable([
    ['call', 'prompt tokens', 'sampled', 'first token', 'time', 'ended by', 'grade'],
    ...calls.map((call) => [
      String(call.index + 1),
      String(call.prompt_tokens),
      String(call.sampled_tokens),
      call.first_token_ms === null ? '-' : `${call.first_token_ms} ms`,
      call.duration_ms === null ? '-' : `${call.duration_ms} ms`,
      call.failure ?? call.finish,
      call.grade ?? '-',
    ]),
    ['all', String(totals.prompt_tokens), String(totals.sampled_tokens), '', '', '', exact],
  ])
}

function toRow(turn: Turn): CallRow {
  const { response } = turn
  return {
    index: turn.index,
    turn_id: turn.id,
    outcome: outcomeOf(turn),
    model: turn.model,
    stream: turn.stream,
    prompt_tokens: response?.promptIds.length ?? 0,
    sampled_tokens: sum(response?.choices ?? [], (choice) => choice.ids.length),
    first_token_ms: turn.firstTokenAt === undefined ? null : turn.firstTokenAt - turn.startedAt,
    duration_ms: turn.endedAt === undefined ? null : turn.endedAt - turn.startedAt,
    finish: response?.choices.map((choice) => choice.finishReason).join(',') || outcomeOf(turn),
    grade: response?.grade ?? null,
    delivery: turn.delivery,
    failure: turn.failure?.code ?? null,
  }
}

function sum<T>(items: readonly T[], value: (item: T) => number): number {
  return items.reduce((total, item) => total + value(item), 0)
}
