import * as z from 'zod'
import { hasNaN } from '../lib/has-nan.ts'
import { Label, type ExclusionReason } from '../model/sample.ts'
import { GRAMMARS } from '../model/steering.ts'
import type { TrainingSpec } from '../model/task.ts'
import { FinishReason, Exactness, outcomeOf, Steering } from '../model/turn.ts'
import type { CallNode } from './graph/call-graph.ts'
import { parserFailureOf } from './parser-failure.ts'

/** Selects the calls to train. Default: calls of the agent and its sub-agents whose token ids are exact. */
export const CallFilter = z.strictObject({
  labels: z.array(Label).default(['main', 'subagent']).describe('Purposes of trained calls'),
  grades: z.array(Exactness).default(['exact']).describe('Exactness of the token ids of trained calls'),
  finishReasons: z.array(FinishReason).optional().describe('Finish reasons of trained calls; all if absent'),
  maxTokens: z.int().positive().optional().describe('Maximum tokens of prompt and answer together'),
  minSampledTokens: z.int().nonnegative().default(1).describe('Minimum tokens of the answer'),
  parserFailures: z
    .enum(['keep', 'exclude'])
    .default('keep')
    .describe('Whether to train calls whose tool call could not be parsed'),
  allowSteered: z.array(Steering).default([]).describe('Kinds of steering that do not exclude a call'),
  requireLogprobs: z.boolean().default(true).describe('Exclude calls without a log probability for every token'),
  requireDelivery: z
    .boolean()
    .default(true)
    .describe('Exclude calls whose answer did not reach the harness completely'),
})
export type CallFilter = z.infer<typeof CallFilter>

/** Returns the filter settings of a task. */
export function toCallFilter(training: TrainingSpec | null | undefined): Partial<CallFilter> {
  const { labels, allow_steered: steered } = training ?? {}
  return {
    ...(labels == null ? {} : { labels: labels === 'all' ? [...Label.options] : labels }),
    ...(steered == null ? {} : { allowSteered: steered === 'all' ? [...Steering.options] : steered }),
  }
}

/** Returns the reason why a call is not trained; undefined if it is trained. */
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
  const isMasked = response.logprobMode === 'grammar' && !(turn.steeredBy ?? []).some((kind) => GRAMMARS.includes(kind))
  if (isMasked && !GRAMMARS.every((steering) => filter.allowSteered.includes(steering))) {
    return no('steered', 'its log probabilities are those of a grammar that the request does not name')
  }
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
