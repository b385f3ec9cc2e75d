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
import { isNotRun, missingProgram, tail, toEvidence, toMetadata } from '../grading/run-grading.ts'
import { clearWayTo, removeLinksInto } from '../grading/sandbox-links.ts'
import { collectFiles, insideOf, testedFileSettings, writeLeftOut } from '../grading/submitted-files.ts'
import type { Collection, Evaluation, Evaluator, EvaluatorDeps } from './evaluator.ts'
import { resolveTemplates } from './harbor-env.ts'
import { decideOutcome, HarborOutcome, parseRewardFile, type Rewards } from './harbor-reward.ts'

const OUTPUT_BYTES = 16 * 1024 * 1024
const REWARD_BYTES = 256 * 1024
const REPORT_BYTES = 4 * 1024 * 1024
const SHOWN_BYTES = 1000
const DEFAULT_TIMEOUT_SECONDS = 600

const seconds = z.number().positive().max(86_400)

const HarborConfig = z
  .strictObject({
    kind: z.literal('harbor'),
    task_dir: z.string().min(1).optional().describe('Folder of the task on this machine; its tests are in tests/'),
    tests_dir: z.string().min(1).optional().describe('Folder of the tests alone, instead of task_dir'),
    tests_target: z.string().startsWith('/').default('/tests').describe("Path of the tests in the grader's sandbox"),
    verifier_dir: z
      .string()
      .startsWith('/')
      .default('/logs/verifier')
      .describe('Folder in which the tests write reward.json or reward.txt'),
    test_command: z.string().min(1).optional().describe('Shell command for bash; absent: bash <tests_target>/test.sh'),
    verifier_timeout_seconds: seconds.optional().describe('A longer run gets the lowest reward; absent: 600'),
    verifier_timeout: seconds.optional().describe('Another name for verifier_timeout_seconds'),
    env: z
      .record(z.string(), z.string())
      .default({})
      .describe('Environment of the tests; ${NAME} and ${NAME:-default} are replaced by secrets of this node'),
    state: z
      .enum(['workdir', 'everything'])
      .default('workdir')
      .describe(
        "Agent's files that the tests see. workdir: the paths, copied to a new sandbox; everything: the whole file system",
      ),
    ...testedFileSettings,
    outcome: HarborOutcome,
    clamp: z
      .tuple([z.number(), z.number()])
      .optional()
      .describe('Lowest and highest value; a reward outside is set to the nearer one, and metadata holds the original'),
    reward_range: RewardRangeSetting.optional().describe(
      'Lowest and highest reward. A reward outside counts as missing. Absent: clamp, or 0 and 1. An agent whose files cannot ' +
        'be graded gets the lowest reward',
    ),
    missing_reward: z
      .enum(['zero', 'check', 'fail'])
      .default('zero')
      .describe(
        "Result if the tests wrote no reward. zero: the lowest reward, because the agent's code can cause it. check: the " +
          "lowest reward if the tests write one without the agent's files, else a failure of the grader. fail: a failure " +
          "of the grader, unless the tests write a reward without the agent's files",
      ),
  })
  .refine(({ task_dir: task, tests_dir: tests }) => (task === undefined) !== (tests === undefined), {
    error: 'set either task_dir or tests_dir',
  })
  .refine((config) => config.verifier_timeout === undefined || config.verifier_timeout_seconds === undefined, {
    error: 'set verifier_timeout_seconds or verifier_timeout, not both',
  })
  .refine(({ clamp }) => clamp === undefined || clamp[0] <= clamp[1], {
    path: ['clamp'],
    error: 'must be [lowest, highest]',
  })
type HarborConfig = z.infer<typeof HarborConfig>

/** Result of one run of the tests. */
type Verdict =
  | { kind: 'rewards'; rewards: Rewards; ran: CommandResult }
  | { kind: 'timeout'; ran: CommandResult }
  | { kind: 'none'; problem: string; ran: CommandResult }

/** Runs the tests of a Harbor task over the agent's files and reads the reward that they write to a file. */
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

/** Skips missing paths: the tests decide whether a path is required. */
async function collect(agent: Workspace, config: HarborConfig, { submission }: Collection): Promise<void> {
  for (const [index, path] of config.paths.entries()) {
    const folder = join(submission, `path-${index}`)
    await mkdir(folder)
    try {
      await collectFiles(agent, folder, { ...config, paths: [path] })
    } catch (error) {
      if (!(error instanceof RolloutError) || error.code !== 'workspace.file-missing') throw error
    }
  }
}

async function evaluate(config: HarborConfig, deps: EvaluatorDeps, evaluation: Evaluation): Promise<EvalResult> {
  const tests = await findTests(config)
  const env = { ...resolveTemplates(config.env, (name) => deps.secret(name)), ...evaluation.env }
  const verify = (files: 'agent' | 'none', name: string) => runTests(config, { tests, env, files, name }, evaluation)
  const first = await verify('agent', 'verifier')
  if (first.kind !== 'none') return toResult(config, first)
  switch (config.missing_reward) {
    case 'fail':
      throw noReward(first)
    case 'zero': {
      // The agent's code can cause these exit codes too, so only a run without it shows the cause.
      const program = isNotRun(first.ran) ? missingProgram((await verify('none', 'verifier-alone')).ran) : undefined
      if (program === undefined) return toResult(config, first)
      const message = `The tests need the program ${program}, which the grader's sandbox lacks. Install it in the image.`
      throw new RolloutError('evaluator.crashed', message)
    }
    case 'check': {
      const second = await verify('agent', 'verifier-again')
      if (second.kind !== 'none') return toResult(config, second)
      const without = await verify('none', 'verifier-alone')
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
    throw new RolloutError('config.invalid', `${path} is not a folder. It must contain the tests of the Harbor task.`)
  }
  const script = join(path, 'test.sh')
  if (config.test_command === undefined && (await lstat(script).catch(() => undefined)) === undefined) {
    throw new RolloutError('config.invalid', `${script} does not exist. Add it, or set test_command.`)
  }
  return path
}

async function runTests(
  config: HarborConfig,
  { tests, env, files, name }: { tests: string; env: Record<string, string>; files: 'agent' | 'none'; name: string },
  evaluation: Evaluation,
): Promise<Verdict> {
  const { tests_target: target, verifier_dir: verifierDir } = config
  const isCopy = config.state === 'everything' && files === 'agent'
  const grader = await evaluation.grader(isCopy ? 'agent' : 'clean')
  const leftOut: LeftOut[] = []
  if (!isCopy && files === 'agent') leftOut.push(...(await restore(grader, config, evaluation)))
  const clean = onceOnly(() => evaluation.grader('clean'))
  if (isCopy) for (const folder of [target, verifierDir]) await clearWayTo(grader, posix.normalize(folder), clean)
  // Uploaded last, so that no file of the agent replaces the tests.
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
  const report = await readIfPresent(grader, posix.join(verifierDir, 'ctrf.json'), REPORT_BYTES)
  if (report instanceof Buffer) await evidence.write(`${name}-ctrf.json`, report)
  // After a timeout the agent's code may have written the reward file.
  if (ran.isTimedOut) return { kind: 'timeout', ran }
  const read = await readRewards(grader, verifierDir, name, evaluation)
  const problem = read.kind === 'rewards' ? outcomeProblem(config, read.rewards) : undefined
  return problem === undefined ? { ...read, ran } : { kind: 'none', problem, ran }
}

/** Describes an outcome outside of the declared range; undefined if it is inside or `clamp` moves it inside. */
function outcomeProblem(config: HarborConfig, rewards: Rewards): string | undefined {
  if (config.clamp !== undefined && config.reward_range === undefined) return undefined
  return rangeProblem({ outcome_reward: toOutcome(config, rewards).clamped }, rangeOf(config))
}

function limitOf(config: HarborConfig): number {
  return config.verifier_timeout_seconds ?? config.verifier_timeout ?? DEFAULT_TIMEOUT_SECONDS
}

async function restore(grader: Workspace, config: HarborConfig, { submission }: Evaluation): Promise<LeftOut[]> {
  const leftOut: LeftOut[] = []
  for (const [index, path] of config.paths.entries()) {
    const folder = join(submission, `path-${index}`)
    const stats = await lstat(join(folder, 'files', '0')).catch(() => undefined)
    if (stats !== undefined) leftOut.push(...(await restoreFiles(grader, folder, { ...config, paths: [path] })))
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
    `${path} cannot be created in the grader's sandbox: ${tail(made.stderr, SHOWN_BYTES)}. Set verifier_dir to the folder that the tests use.`,
  )
}

/** Reads reward.json before reward.txt, as Harbor does. All processes of the tests have ended. */
async function readRewards(
  grader: Workspace,
  folder: string,
  name: string,
  { evidence }: Evaluation,
): Promise<{ kind: 'rewards'; rewards: Rewards } | { kind: 'none'; problem: string }> {
  for (const file of ['reward.json', 'reward.txt'] as const) {
    const path = posix.join(folder, file)
    const data = await readIfPresent(grader, path, REWARD_BYTES)
    if (data === undefined) continue
    if (typeof data === 'string') return { kind: 'none', problem: data }
    await evidence.write(`${name}-${file}`, data)
    const parsed = parseRewardFile(file, data.toString('utf8'))
    return 'problem' in parsed ? { kind: 'none', problem: `${path} ${parsed.problem}` } : { kind: 'rewards', ...parsed }
  }
  return { kind: 'none', problem: `${folder} contains neither reward.json nor reward.txt` }
}

/** Returns the file, undefined if it does not exist, or the reason why it cannot be read. */
async function readIfPresent(grader: Workspace, path: string, maxBytes: number): Promise<Buffer | string | undefined> {
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
  const said = tail(ran.stderr.length > 0 ? ran.stderr : ran.stdout, SHOWN_BYTES) || 'no output'
  return new RolloutError('evaluator.crashed', `The tests left no reward: ${problem} (they ${how}): ${said}`)
}

function lowest(config: HarborConfig, ran: CommandResult, more: Record<string, unknown>): EvalResult {
  return { outcome_reward: rangeOf(config)[0], metadata: { ...toMetadata(ran), ...more } }
}
