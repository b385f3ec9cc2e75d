import type { Turn } from '../../../src/model/turn.ts'
import { Evidence } from '../trajectory-oracle.ts'
import type { OpenTrial } from './trial.ts'

/** Returns the situations that occur in a session's records and samples, because a generator may miss its target. */
export function situationsOf(trial: OpenTrial): Record<string, boolean> {
  const { turns } = trial.session
  const evidence = new Evidence(trial)
  const { built, samples } = evidence.of('prefix_merging')
  const { nodes, duplicates } = built.graph
  const choices = turns.flatMap(({ response }) => response?.choices ?? [])
  const numbers = new Set(turns.map(({ index }) => index))
  const hasLabel = (label: string): boolean => nodes.some((node) => node.label === label)
  const hasFork = (reason: string): boolean => Object.keys(built.summary.forks).includes(reason)
  const has = (test: (turn: Turn) => boolean): boolean => turns.some(test)
  return {
    'chain of three': samples.some(({ calls }) => calls.length >= 3),
    'several rows': samples.length > 1,
    'nothing to train': samples.length === 0,
    'n > 1': has(({ response }) => (response?.choices.length ?? 0) > 1),
    branch: nodes.some(({ children }) => new Set(children.map(({ turn }) => turn)).size > 1),
    'same request twice': turns.some((turn, i) => turns.slice(0, i).some((other) => isRepeated(turn, other))),
    'same answer twice': nodes.some((node, i) => nodes.slice(0, i).some((other) => isTwin(node, other))),
    'sub-agent or side call': hasLabel('subagent') || hasLabel('side-call'),
    'calls at the same time': turns.some((turn, i) => turns.slice(0, i).some((other) => isAtOnce(turn, other))),
    'truncated turn': choices.some(({ finishReason }) => finishReason === 'length'),
    'no end-of-turn token': choices.some(({ finishReason, ids }) => finishReason === 'stop' && ids.at(-1) !== 0),
    'answer goes on in the next prompt': nodes.some(
      ({ edge, response }) => edge.verdict === 'exact' && endOf(edge.parent) === response.promptIds.length,
    ),
    'history that came back changed': nodes.some(({ edge }) => edge.verdict === 'forked'),
    retokenised: hasFork('retokenised'),
    'reasoning stripped': hasFork('reasoning-stripped'),
    'new weights midway': choices.some(({ weightSpans }) => (weightSpans?.length ?? 0) > 1),
    'weights known midway': choices.some(({ weightSpans }) => (weightSpans?.[0]?.from ?? 0) > 0),
    'missing logprob': choices.some(({ logprobs }) => logprobs.some(Number.isNaN)),
    'doubtful ids': has(({ response }) => response !== undefined && response.grade !== 'exact'),
    'under a grammar': has(({ response }) => response?.logprobMode === 'grammar'),
    undelivered: has(({ delivery }) => delivery === 'undelivered'),
    'failed midway': has(({ failure, response }) => failure !== undefined && response !== undefined),
    'no answer': has(({ response }) => response === undefined || response.choices.length === 0),
    unfinished: has(({ endedAt }) => endedAt === undefined),
    'out of order': turns.some(({ index }, i) => index < (turns[i - 1]?.index ?? 0)),
    'doubled record': duplicates.length > 0,
    'lost record': Math.max(-1, ...numbers) + 1 > numbers.size,
    compaction: trial.script.ops.slice(0, -1).some(({ kind }) => kind === 'compact'),
  }
}

type Node = ReturnType<OpenTrial['build']>['graph']['nodes'][number]

function isRepeated(a: Turn, b: Turn): boolean {
  return a.id !== b.id && a.request === b.request
}

function isTwin(a: Node, b: Node): boolean {
  return isSame(a.response.promptIds, b.response.promptIds) && isSame(a.choice.ids, b.choice.ids)
}

function isSame(a: Int32Array, b: Int32Array): boolean {
  return a.length > 0 && a.length === b.length && a.every((id, i) => id === b[i])
}

function isAtOnce(a: Turn, b: Turn): boolean {
  return a.id !== b.id && a.startedAt < (b.endedAt ?? 0) && b.startedAt < (a.endedAt ?? 0)
}

function endOf({ response, choice }: Node): number {
  return response.promptIds.length + choice.ids.length
}
