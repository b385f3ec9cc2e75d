import { createHash } from 'node:crypto'
import { RolloutError } from '../../model/failure.ts'
import { judgeEnding } from '../../model/refill.ts'
import type { Sample } from '../../model/sample.ts'
import type { SessionRecord } from '../../model/session.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { buildSession, type BuildOptions, type BuiltSession } from '../../trajectory/build-session.ts'
import { whyEndingRejected, whyTrajectoryRejected, type AcceptRules } from './accept-rules.ts'
import type { Decision } from './campaign-journal.ts'
import type { SecretScrubber } from './secrets.ts'

export interface JudgeDeps {
  load: (sessionId: string) => Promise<SessionRecord>
  build: BuildOptions
  rules: AcceptRules
  scrubber: SecretScrubber
  /** Whether an exported format contains token ids, from which a secret cannot be removed. */
  exportsTokens: boolean
  /** Whether an accepted trajectory of the task has this digest. */
  hasDigest: (taskId: string, digest: string) => boolean
}

type Judgement = Pick<Decision, 'verdict' | 'reason' | 'digest' | 'toolCalls' | 'secrets'>

/** Decides whether an ended session becomes training data. Loads its calls only if its ending and reward allow that. */
export async function judgeSession(outcome: SessionOutcome, deps: JudgeDeps): Promise<Judgement> {
  if (judgeEnding(outcome, { refillsLeft: 1, mayChangeMachine: false }) !== 'valid') {
    return { verdict: 'failed', reason: outcome.failure?.code ?? outcome.status }
  }
  const { ending, grade } = outcome
  const early = whyEndingRejected({ ending: ending?.kind, reward: grade?.outcome_reward ?? undefined }, deps.rules)
  if (early !== undefined) return { verdict: 'rejected', reason: early }
  const record = await deps.load(outcome.sessionId).catch(ifDamaged)
  if (record === undefined) return { verdict: 'rejected', reason: 'incomplete' }
  const built = buildSession(record, deps.build)
  const samples = [...built.samples()]
  const toolCalls = countToolCalls(built, samples)
  const { turns, tokens } = built.summary
  const facts = { isComplete: built.session.complete, turns, toolCalls, trainedTokens: tokens.trained }
  const late = whyTrajectoryRejected(facts, deps.rules)
  if (late !== undefined) return { verdict: 'rejected', reason: late, toolCalls }
  const secrets = samples.reduce((sum, sample) => sum + deps.scrubber.count(sample.messages()), 0)
  if (secrets > 0 && deps.exportsTokens) return { verdict: 'rejected', reason: 'secret', toolCalls, secrets }
  const digest = digestOf(samples)
  if (deps.hasDigest(outcome.taskId, digest)) {
    return { verdict: 'rejected', reason: 'duplicate', digest, toolCalls, secrets }
  }
  return { verdict: 'accepted', digest, toolCalls, secrets }
}

/** Returns undefined for a call log that cannot be read. */
function ifDamaged(error: unknown): undefined {
  if (!(error instanceof RolloutError) || !error.code.startsWith('store.')) throw error
}

function countToolCalls({ graph }: BuiltSession, samples: readonly Sample[]): number {
  const trained = new Set(samples.flatMap(({ calls }) => calls.flatMap((call) => (call.isTrained ? [call.key] : []))))
  const nodes = graph.nodes.filter(({ key }) => trained.has(key))
  return nodes.reduce((sum, { choice }) => sum + choice.message.toolCalls.length, 0)
}

/** Digest of the trained tokens, answer by answer. The context is not part of it: it may contain times and random names. */
function digestOf(samples: readonly Sample[]): string {
  const hash = createHash('sha256')
  for (const { ids, calls } of samples) {
    for (const { from, to, isTrained } of calls) {
      if (isTrained) hash.update(`${to - from}:`).update(ids.slice(from, to))
    }
    hash.update(';')
  }
  return hash.digest('hex').slice(0, 32)
}
