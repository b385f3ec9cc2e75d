import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import * as z from 'zod'
import { ignoreErrno } from '../../lib/fs/errno.ts'
import type { Plug, Plugs } from '../../lib/plug.ts'
import { RolloutError } from '../../model/failure.ts'
import type { EvalResult } from '../../model/reward.ts'
import type { Workspace } from '../../model/workspace.ts'
import { assertInRange, USUAL_RANGE, type RewardRange } from '../grading/reward-range.ts'
import type { Collection, Evaluation, Evaluator, EvaluatorDeps, Evidence } from './evaluator.ts'

/** Part names are also folder names in the submission and prefixes of evidence files. */
const PART_NAME = /^[a-z][a-z0-9_-]{0,31}$/

const PartConfig = z.strictObject({
  name: z.string().regex(PART_NAME, 'must be lower-case letters, digits, - and _').describe('Name of its component'),
  weight: z.number().default(1).describe('Factor of its reward; negative for a penalty'),
  required: z
    .union([z.boolean(), z.number()])
    .default(false)
    .describe('true: a reward of 0 or less makes the outcome 0; a number: a lower reward makes the outcome 0'),
  strategy: z.string().min(1).describe('Name of an evaluator, or the absolute path of a module'),
  config: z.record(z.string(), z.unknown()).default({}),
})

const WeightedConfig = z.strictObject({
  kind: z.literal('weighted'),
  parts: z.array(PartConfig).min(1).max(32).describe('Evaluators whose weighted rewards are added'),
})

type Parts = Plugs<{ kind: string }, EvaluatorDeps, Evaluator>
type Part = z.infer<typeof PartConfig> & { evaluator: Evaluator }

/** Combines evaluators: the outcome is the sum of their weighted rewards, and each reward is a component. */
export function weighted(parts: Parts): Plug<typeof WeightedConfig, EvaluatorDeps, Evaluator> {
  return {
    config: WeightedConfig.superRefine((config, context) => checkParts(config, parts, context)),
    create(config, deps) {
      const made = config.parts.map((part) => ({
        ...part,
        evaluator: parts.create(parts.config.parse({ ...part.config, kind: part.strategy }), deps),
      }))
      return {
        needs: {
          sandbox: made.some(({ evaluator }) => evaluator.needs.sandbox),
          agentState: made.some(({ evaluator }) => evaluator.needs.agentState),
          messages: made.some(({ evaluator }) => evaluator.needs.messages !== false),
        },
        rewards: rangeOf(made),
        async check(assertUpload) {
          for (const { evaluator } of made) await evaluator.check?.(assertUpload)
        },
        ...(made.some(({ evaluator }) => evaluator.collect !== undefined) && {
          collect: (agent: Workspace, collection: Collection) => collect(made, agent, collection),
        }),
        evaluate: (evaluation) => evaluate(made, evaluation),
      }
    },
  }
}

/** Range of the sum. Includes 0, the outcome if a required part fails. */
function rangeOf(parts: readonly Part[]): RewardRange {
  const products = parts.map((part) => rewardsOf(part).map((reward) => part.weight * reward))
  const extreme = (pick: (...values: number[]) => number): number => sum(products.map((values) => pick(...values)))
  return [Math.min(0, extreme(Math.min)), Math.max(0, extreme(Math.max))]
}

function rewardsOf({ evaluator }: Part): RewardRange {
  return evaluator.rewards ?? USUAL_RANGE
}

/**
 * Reward of a part that the agent made ungradable: the one that lowers the sum most, so that a penalty cannot be
 * avoided.
 */
function worstOf(part: Part): number {
  const [lowest, highest] = rewardsOf(part)
  return part.weight < 0 ? highest : lowest
}

function checkParts(
  { parts: given }: z.infer<typeof WeightedConfig>,
  parts: Parts,
  context: z.core.$RefinementCtx<z.infer<typeof WeightedConfig>>,
): void {
  const names = new Set<string>()
  for (const [index, { name, strategy, config }] of given.entries()) {
    const add = (path: PropertyKey[], message: string) =>
      context.addIssue({ code: 'custom', path: ['parts', index, ...path], message, input: config })
    if (names.has(name)) add(['name'], `another part has the name ${name}`)
    names.add(name)
    if (!parts.kinds.includes(strategy)) {
      add(['strategy'], `must be one of ${parts.kinds.join(', ')}`)
      continue
    }
    const checked = parts.config.safeParse({ ...config, kind: strategy })
    for (const issue of checked.error?.issues ?? []) add(['config', ...issue.path], issue.message)
  }
}

async function collect(parts: readonly Part[], agent: Workspace, collection: Collection): Promise<void> {
  for (const part of parts) {
    if (part.evaluator.collect === undefined) continue
    try {
      await part.evaluator.collect(agent, await forPart(part, collection))
    } catch (error) {
      // A failure that the agent caused affects only this part.
      if (!(error instanceof RolloutError) || error.blame !== 'policy') throw error
      const refusal: Refusal = { code: error.code, message: error.message }
      await writeFile(refusalPath(part, collection), JSON.stringify(refusal))
    }
  }
}

interface Refusal {
  code: string
  message: string
}

function refusalPath({ name }: Part, { submission }: Collection): string {
  return join(submission, `${name}.refused.json`)
}

async function loadRefusal(part: Part, collection: Collection): Promise<Refusal | undefined> {
  const text = await readFile(refusalPath(part, collection), 'utf8').catch(ignoreErrno('ENOENT'))
  return text === undefined ? undefined : (JSON.parse(text) as Refusal)
}

/** Returns the session with a separate folder and evidence for the part. */
async function forPart<T extends Collection>({ name }: Part, given: T): Promise<T> {
  const submission = join(given.submission, name)
  await mkdir(submission, { recursive: true })
  const evidence: Evidence = { write: (file, data) => given.evidence.write(`${name}.${file}`, data) }
  return { ...given, submission, evidence }
}

async function evaluate(parts: readonly Part[], evaluation: Evaluation): Promise<EvalResult> {
  const graded: Graded[] = []
  for (const part of parts) graded.push({ part, result: await evaluatePart(part, evaluation) })
  const failed = graded
    .filter(({ part, result }) => !isEnough(part, result.outcome_reward))
    .map(({ part }) => part.name)
  const metadata = {
    parts: Object.fromEntries(
      graded.map(({ part, result }) => [
        part.name,
        { strategy: part.strategy, weight: part.weight, reward: result.outcome_reward, ...result.metadata },
      ]),
    ),
    ...(failed.length > 0 && { required_failed: failed }),
  }
  const components = Object.assign({}, ...graded.map(componentsOf)) as Record<string, number>
  if (failed.length > 0) return { outcome_reward: 0, components, metadata }
  const traceRewards = addTraces(graded, evaluation.samples)
  return {
    outcome_reward: sum(graded.map(({ part, result }) => part.weight * result.outcome_reward)),
    trace_rewards: traceRewards,
    components,
    metadata,
  }
}

interface Graded {
  part: Part
  result: EvalResult & { outcome_reward: number }
}

async function evaluatePart(part: Part, evaluation: Evaluation): Promise<Graded['result']> {
  evaluation.signal.throwIfAborted()
  const refusal = await loadRefusal(part, evaluation)
  if (refusal !== undefined) {
    return { outcome_reward: worstOf(part), metadata: { failure: refusal.code, message: refusal.message } }
  }
  const result = await part.evaluator.evaluate(await forPart(part, evaluation))
  assertInRange(result, rewardsOf(part), `Part ${part.name} (${part.strategy})`)
  const { outcome_reward: reward } = result
  if (reward != null) return { ...result, outcome_reward: reward }
  throw new RolloutError(
    'evaluator.crashed',
    `Part ${part.name} (${part.strategy}) returned no outcome_reward, which weighted requires.`,
  )
}

function isEnough({ required }: Part, reward: number): boolean {
  if (required === false) return true
  return required === true ? reward > 0 : reward >= required
}

function componentsOf({ part: { name }, result }: Graded): Record<string, number> {
  const inner = Object.entries(result.components ?? {}).map(([key, value]) => [`${name}.${key}`, value])
  return { [name]: result.outcome_reward, ...(Object.fromEntries(inner) as Record<string, number>) }
}

/** Adds the rewards of each trace, or the part's outcome if it has none. Undefined if no part has trace rewards. */
function addTraces(graded: readonly Graded[], samples: number): number[] | undefined {
  if (graded.every(({ result }) => result.trace_rewards == null)) return undefined
  return Array.from({ length: samples }, (_, trace) =>
    sum(graded.map(({ part, result }) => part.weight * (result.trace_rewards?.[trace] ?? result.outcome_reward))),
  )
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0)
}
