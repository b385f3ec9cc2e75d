import * as z from 'zod'
import { hasNaN } from '../lib/has-nan.ts'
import { Label, type ExclusionReason } from '../model/sample.ts'
import type { TrainingSpec } from '../model/task.ts'
import { FinishReason, Grade, outcomeOf, Steering } from '../model/turn.ts'
import type { CallNode } from './graph/call-graph.ts'
import { parserFailureOf } from './parser-failure.ts'

/** Which calls are trained. The defaults train what the agent and its sub-agents did and the engine vouched for. */
export const CallFilter = z.strictObject({
  labels: z.array(Label).default(['main', 'subagent']).describe('What a call must have been for'),
  grades: z.array(Grade).default(['exact']).describe('How far its token ids must be trusted'),
  finishReasons: z.array(FinishReason).optional().describe('How its answer must have ended; all when absent'),
  maxTokens: z.int().positive().optional().describe('Longest prompt and answer together'),
  minSampledTokens: z.int().nonnegative().default(1).describe('Shortest answer'),
  parserFailures: z.enum(['keep', 'exclude']).default('keep').describe('Calls whose tool call could not be read'),
  allowSteered: z.array(Steering).default([]).describe('Ways of steering that do not keep a call from being trained'),
  requireLogprobs: z.boolean().default(true).describe('Leave out calls that lack a log probability'),
  requireDelivery: z.boolean().default(true).describe('Leave out calls the harness did not get the whole answer of'),
})
export type CallFilter = z.infer<typeof CallFilter>

/** What a task sets of the filter. */
export function toCallFilter(training: TrainingSpec | null | undefined): Partial<CallFilter> {
  const { labels, allow_steered: steered } = training ?? {}
  return {
    ...(labels == null ? {} : { labels: labels === 'all' ? [...Label.options] : labels }),
    ...(steered == null ? {} : { allowSteered: steered === 'all' ? [...Steering.options] : steered }),
  }
}

/** Why a call is not trained; undefined for one that is. */
export function whyNotTrained(
  node: CallNode,
  filter: CallFilter,
): { reason: ExclusionReason; detail: string } | undefined {
  const { turn, response, choice } = node
  const no = (reason: ExclusionReason, detail: string): { reason: ExclusionReason; detail: string } => ({
    reason,
    detail,
  })
  const length = response.promptIds.length + choice.ids.length
  if (outcomeOf(turn) === 'unfinished') return no('unfinished', 'the call has no recorded end')
  if (turn.failure !== undefined) return no('failed', `${turn.failure.code}: ${turn.failure.message}`)
  if (filter.requireDelivery && turn.delivery === 'undelivered') {
    return no('undelivered', 'the harness did not get the whole answer')
  }
  if (!filter.grades.includes(response.grade)) {
    return no('grade', [`grade ${response.grade}`, ...response.gradeReasons].join('; '))
  }
  if (response.promptIds.length === 0 || choice.ids.length === 0) return no('no-tokens', 'the engine gave no token ids')
  if (choice.ids.length < filter.minSampledTokens) return no('too-short', `${choice.ids.length} sampled tokens`)
  if (!filter.labels.includes(node.label)) return no('label', `labelled ${node.label}: ${node.evidence.join('; ')}`)
  const steered = (turn.steeredBy ?? []).filter((steering) => !filter.allowSteered.includes(steering))
  if (steered.length > 0) return no('steered', `the request steered the sampling: ${steered.join(', ')}`)
  if (filter.finishReasons !== undefined && !filter.finishReasons.includes(choice.finishReason)) {
    return no('finish-reason', `ended by ${choice.finishReason}`)
  }
  if (filter.maxTokens !== undefined && length > filter.maxTokens) return no('too-long', `${length} tokens`)
  if (filter.requireLogprobs && hasNaN(choice.logprobs)) {
    return no('no-logprobs', 'the engine left out log probabilities')
  }
  const parserFailure = filter.parserFailures === 'exclude' ? parserFailureOf(choice) : undefined
  return parserFailure === undefined ? undefined : no('parser-failure', parserFailure)
}
