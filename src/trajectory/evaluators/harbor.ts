import { lstat, mkdir } from 'node:fs/promises'
import { join, posix, resolve } from 'node:path'
import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { shellWord } from '../../lib/process/shell-word.ts'
import { RolloutError } from '../../model/failure.ts'
import type { EvalResult } from '../../model/reward.ts'
import type { CommandResult, LeftOut, Workspace } from '../../model/workspace.ts'
import { clearLinks, restoreFiles } from '../grading/restore-files.ts'
import { rangeProblem, RewardRangeSetting, USUAL_RANGE, type RewardRange } from '../grading/reward-range.ts'
import { isNotRun, missingProgram, tail, toEvidence } from '../grading/run-grading.ts'
import { clearWayTo, removeLinksInto } from '../grading/sandbox-links.ts'
import { collectFiles, insideOf, testedFileSettings, writeLeftOut } from '../grading/submitted-files.ts'
import type { Collection, Evaluation, Evaluator, EvaluatorDeps } from './evaluator.ts'
import { resolveTemplates } from './harbor-env.ts'
import { decideOutcome, HarborOutcome, parseRewardFile, type Rewards } from './harbor-reward.ts'

const OUTPUT_BYTES = 16 * 1024 * 1024
const REWARD_BYTES = 256 * 1024
const REPORT_BYTES = 4 * 1024 * 1024
const TOLD_BYTES = 1000
const USUAL_TIMEOUT_SECONDS = 600

const seconds = z.number().positive().max(86_400)

const HarborConfig = z
  .strictObject({
    kind: z.literal('harbor'),
    task_dir: z.string().min(1).optional().describe('Folder of the task on this machine; its tests are in tests/'),
    tests_dir: z.string().min(1).optional().describe('Folder of the tests alone, instead of task_dir'),
    tests_target: z.string().startsWith('/').default('/tests').describe("Where the tests go in the grader's sandbox"),
    verifier_dir: z
      .string()
      .startsWith('/')
      .default('/logs/verifier')
      .describe('Where the tests leave reward.json or reward.txt'),
    test_command: z.string().min(1).optional().describe('For bash; absent: bash <tests_target>/test.sh'),
    verifier_timeout_seconds: seconds.optional().describe('Longer is a reward of 0; absent: 600'),
    verifier_timeout: seconds.optional().describe('Another name for verifier_timeout_seconds'),
    env: z
      .record(z.string(), z.string())
      .default({})
      .describe('For the tests; ${NAME} and ${NAME:-else} stand for secrets of this machine'),
    state: z
      .enum(['workdir', 'everything'])
      .default('workdir')
      .describe('What the tests see of the agent: the paths, put into a new sandbox; or a copy of all it left'),
    ...testedFileSettings,
    outcome: HarborOutcome,
    clamp: z
      .tuple([z.number(), z.number()])
      .optional()
      .describe('Least and most; a reward outside is moved to the nearer of them, and metadata says from where'),
    reward_range: RewardRangeSetting.optional().describe(
      'Lowest and highest reward; one outside counts as no reward. Absent: clamp, or 0 and 1. The lowest is the reward of an ' +
        'agent that cannot be graded because of what it left',
    ),
    missing_reward: z
      .enum(['zero', 'check', 'fail'])
      .default('zero')
      .describe(
        "What it means that the tests left no reward: zero, the lowest reward, since the agent's code can cause it; check, " +
          "the lowest reward if they leave one without the agent's files, else a failure of the grader; fail, a failure " +
          "of the grader, unless they leave a reward without the agent's files",
      ),
  })
  .refine(({ task_dir: task, tests_dir: tests }) => (task === undefined) !== (tests === undefined), {
    error: 'give either task_dir or tests_dir',
  })
  .refine((config) => config.verifier_timeout === undefined || config.verifier_timeout_seconds === undefined, {
    error: 'give verifier_timeout_seconds or verifier_timeout, not both',
  })
  .refine(({ clamp }) => clamp === undefined || clamp[0] <= clamp[1], { path: ['clamp'], error: 'runs backwards' })
type HarborConfig = z.infer<typeof HarborConfig>

/** What one run of the tests came to. */
type Verdict =
  | { kind: 'rewards'; rewards: Rewards; ran: CommandResult }
  | { kind: 'timeout'; ran: CommandResult }
  | { kind: 'none'; problem: string; ran: CommandResult }

/** Runs the tests of a Harbor task over what the agent left, and takes the reward they leave in a file. */
export const harbor: Plug<typeof HarborConfig, EvaluatorDeps, Evaluator> = {
  config: HarborConfig,
  create: (config, deps) => ({
    needs: { sandbox: true, agentState: config.state === 'everything', messages: false },
    rewards: rangeOf(config),
    check: async (assertUpload) => {
      await assertUpload(testsOf(config))
      await findTests(config)
      resolveTemplates(config.env, (name) => deps.secret(name))
    },
    ...(config.state === 'workdir' && { collect: (agent, collection) => collect(agent, config, collection) }),
    evaluate: (evaluation) => evaluate(config, deps, evaluation),
  }),
}

/** A path that is not there is left out: whether it had to be is for the tests to say. */
async function collect(agent: Workspace, config: HarborConfig, { submission }: Collection): Promise<void> {
  for (const [index, path] of config.paths.entries()) {
    const place = join(submission, `path-${index}`)
    await mkdir(place)
    try {
      await collectFiles(agent, place, { ...config, paths: [path] })
    } catch (error) {
      if (!(error instanceof RolloutError) || error.code !== 'workspace.file-missing') throw error
    }
  }
}

async function evaluate(config: HarborConfig, deps: EvaluatorDeps, evaluation: Evaluation): Promise<EvalResult> {
  const tests = await findTests(config)
  const env = { ...resolveTemplates(config.env, (name) => deps.secret(name)), ...evaluation.env }
  const verify = (of: 'agent' | 'nobody', name: string) => runTests(config, { tests, env, of, name }, evaluation)
  const first = await verify('agent', 'verifier')
  if (first.kind !== 'none') return toResult(config, first)
  switch (config.missing_reward) {
    case 'fail':
      throw noReward(first)
    case 'zero': {
      // Code of the agent can end with these too; only a run without it tells.
      const program = isNotRun(first.ran) ? missingProgram((await verify('nobody', 'verifier-alone')).ran) : undefined
      if (program === undefined) return toResult(config, first)
      const message = `The tests need the program ${program}, which the grader's sandbox lacks`
      throw new RolloutError('evaluator.crashed', message)
    }
    case 'check': {
      const second = await verify('agent', 'verifier-again')
      if (second.kind !== 'none') return toResult(config, second)
      const without = await verify('nobody', 'verifier-alone')
      if (without.kind !== 'rewards') throw noReward(first)
      return lowest(config, first.ran, { missing_reward: first.problem, rewards_without_agent: without.rewards })
    }
  }
}

function rangeOf({ reward_range: range, clamp }: HarborConfig): RewardRange {
  return range ?? clamp ?? USUAL_RANGE
}

function testsOf({ task_dir: task, tests_dir: tests }: HarborConfig): string {
  return resolve(tests ?? join(task!, 'tests'))
}

async function findTests(config: HarborConfig): Promise<string> {
  const path = testsOf(config)
  const stats = await lstat(path).catch(() => undefined)
  if (!stats?.isDirectory()) {
    throw new RolloutError('config.invalid', `${path} is no folder; a Harbor task keeps its tests there.`)
  }
  const script = join(path, 'test.sh')
  if (config.test_command === undefined && (await lstat(script).catch(() => undefined)) === undefined) {
    throw new RolloutError('config.invalid', `${script} does not exist; add it, or set test_command.`)
  }
  return path
}

async function runTests(
  config: HarborConfig,
  { tests, env, of, name }: { tests: string; env: Record<string, string>; of: 'agent' | 'nobody'; name: string },
  evaluation: Evaluation,
): Promise<Verdict> {
  const { tests_target: target, verifier_dir: verifierDir } = config
  const isCopy = config.state === 'everything' && of === 'agent'
  const grader = await evaluation.grader(isCopy ? 'agent' : 'clean')
  const leftOut: LeftOut[] = []
  if (!isCopy && of === 'agent') leftOut.push(...(await restore(grader, config, evaluation)))
  const clean = onceOnly(() => evaluation.grader('clean'))
  if (isCopy) for (const folder of [target, verifierDir]) await clearWayTo(grader, posix.normalize(folder), clean)
  // Last, so that nothing of the agent's is over them.
  await clearLinks(grader, insideOf(grader, target))
  await grader.upload(tests, target)
  await emptyFolder(grader, verifierDir)
  const hidden = [target, verifierDir].map((folder) => insideOf(grader, folder))
  if (isCopy) leftOut.push(...(await removeLinksInto(grader, hidden, clean)))
  await writeLeftOut(evaluation.evidence, `${name}-left-out.json`, leftOut)
  const ran = await grader.run({
    command: ['bash', '-c', config.test_command ?? `bash ${shellWord(posix.join(target, 'test.sh'))}`],
    env,
    timeoutMs: limitOf(config) * 1000,
    outputBytes: OUTPUT_BYTES,
  })
  const { evidence } = evaluation
  await evidence.write(`${name}-stdout.log`, toEvidence(ran.stdout, ran.stdoutBytes))
  await evidence.write(`${name}-stderr.log`, toEvidence(ran.stderr, ran.stderrBytes))
  const report = await readIfThere(grader, posix.join(verifierDir, 'ctrf.json'), REPORT_BYTES)
  if (report instanceof Buffer) await evidence.write(`${name}-ctrf.json`, report)
  // What is there by then may have been written by anybody.
  if (ran.isTimedOut) return { kind: 'timeout', ran }
  const read = await readRewards(grader, verifierDir, name, evaluation)
  const problem = read.kind === 'rewards' ? outcomeProblem(config, read.rewards) : undefined
  return problem === undefined ? { ...read, ran } : { kind: 'none', problem, ran }
}

/** Why the outcome is outside of the declared range; undefined when it is inside, or moved inside by `clamp`. */
function outcomeProblem(config: HarborConfig, rewards: Rewards): string | undefined {
  if (config.clamp !== undefined && config.reward_range === undefined) return undefined
  return rangeProblem({ outcome_reward: toOutcome(config, rewards).clamped }, rangeOf(config))
}

function limitOf(config: HarborConfig): number {
  return config.verifier_timeout_seconds ?? config.verifier_timeout ?? USUAL_TIMEOUT_SECONDS
}

async function restore(grader: Workspace, config: HarborConfig, { submission }: Evaluation): Promise<LeftOut[]> {
  const leftOut: LeftOut[] = []
  for (const [index, path] of config.paths.entries()) {
    const place = join(submission, `path-${index}`)
    const stats = await lstat(join(place, 'files', '0')).catch(() => undefined)
    if (stats !== undefined) leftOut.push(...(await restoreFiles(grader, place, { ...config, paths: [path] })))
  }
  return leftOut
}

/** Calls `make` once, and returns the same promise to every caller. */
function onceOnly<T>(make: () => Promise<T>): () => Promise<T> {
  let made: Promise<T> | undefined
  return () => (made ??= make())
}

async function emptyFolder(grader: Workspace, path: string): Promise<void> {
  const script = 'rm -rf -- "$1" && mkdir -p -- "$1"'
  const made = await grader.run({ command: ['/bin/sh', '-c', script, 'sh', path], cwd: '/', timeoutMs: 30_000 })
  if (made.exitCode === 0) return
  throw new RolloutError(
    'evaluator.crashed',
    `${path} cannot be made in the grader's sandbox: ${tail(made.stderr, TOLD_BYTES)}; set verifier_dir to a place the tests and the sandbox agree on.`,
  )
}

/** As Harbor does: reward.json comes before reward.txt. Nothing of the tests runs any more. */
async function readRewards(
  grader: Workspace,
  folder: string,
  name: string,
  { evidence }: Evaluation,
): Promise<{ kind: 'rewards'; rewards: Rewards } | { kind: 'none'; problem: string }> {
  for (const file of ['reward.json', 'reward.txt'] as const) {
    const path = posix.join(folder, file)
    const data = await readIfThere(grader, path, REWARD_BYTES)
    if (data === undefined) continue
    if (typeof data === 'string') return { kind: 'none', problem: data }
    await evidence.write(`${name}-${file}`, data)
    const parsed = parseRewardFile(file, data.toString('utf8'))
    return 'problem' in parsed ? { kind: 'none', problem: `${path} ${parsed.problem}` } : { kind: 'rewards', ...parsed }
  }
  return { kind: 'none', problem: `there is neither reward.json nor reward.txt in ${folder}` }
}

/** Undefined when there is no such file, or why it cannot be read. */
async function readIfThere(grader: Workspace, path: string, maxBytes: number): Promise<Buffer | string | undefined> {
  try {
    return await grader.readFile(path, { maxBytes })
  } catch (error) {
    if (!(error instanceof RolloutError) || error.boundary !== 'workspace') throw error
    return error.code === 'workspace.file-missing' ? undefined : error.message
  }
}

function toResult(config: HarborConfig, verdict: Verdict): EvalResult {
  const { ran } = verdict
  switch (verdict.kind) {
    case 'timeout':
      return lowest(config, ran, {
        test_timeout: true,
        message: `The tests were ended after ${limitOf(config)} s`,
      })
    case 'none':
      return lowest(config, ran, { missing_reward: verdict.problem })
    case 'rewards': {
      const { outcome, clamped } = toOutcome(config, verdict.rewards)
      return {
        outcome_reward: clamped,
        components: verdict.rewards,
        metadata: { ...toMetadata(ran), ...(clamped === outcome ? {} : { clamped_from: outcome }) },
      }
    }
  }
}

function toOutcome({ outcome: choice, clamp }: HarborConfig, rewards: Rewards): { outcome: number; clamped: number } {
  const outcome = decideOutcome(rewards, choice)
  const [least, most] = clamp ?? [-Infinity, Infinity]
  return { outcome, clamped: Math.min(Math.max(outcome, least), most) }
}

function noReward({ problem, ran }: { problem: string; ran: CommandResult }): RolloutError {
  const how = ran.exitCode === null ? `were ended by ${ran.signal}` : `exited with ${ran.exitCode}`
  const said = tail(ran.stderr.length > 0 ? ran.stderr : ran.stdout, TOLD_BYTES) || 'they said nothing'
  return new RolloutError('evaluator.crashed', `The tests left no reward: ${problem} (they ${how}): ${said}`)
}

function lowest(config: HarborConfig, ran: CommandResult, more: Record<string, unknown>): EvalResult {
  return { outcome_reward: rangeOf(config)[0], metadata: { ...toMetadata(ran), ...more } }
}

function toMetadata({ exitCode, signal, isOutOfMemory, durationMs }: CommandResult): Record<string, unknown> {
  return {
    exit_code: exitCode,
    ...(signal === null ? {} : { signal }),
    ...(isOutOfMemory ? { out_of_memory: true } : {}),
    duration_ms: Math.round(durationMs),
  }
}
