import { mkdir, rm } from 'node:fs/promises'
import { join, posix } from 'node:path'
import { randomBytes } from 'node:crypto'
import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { RolloutError } from '../../model/failure.ts'
import type { EvalResult } from '../../model/reward.ts'
import type { CommandResult, LeftOut, Workspace } from '../../model/workspace.ts'
import { assertSources } from '../grading/assert-sources.ts'
import { parseReward, REWARD_BYTES } from '../grading/parse-reward.ts'
import { clearLinks, restoreFiles } from '../grading/restore-files.ts'
import { rangeProblem, rewardRange } from '../grading/reward-range.ts'
import { runGrading, toEvidence, toMetadata } from '../grading/run-grading.ts'
import { collectFiles, insideOf, testedFileSettings, toLimits, writeLeftOut } from '../grading/submitted-files.ts'
import type { Evaluation, Evaluator, EvaluatorDeps } from './evaluator.ts'

const OUTPUT_BYTES = 16 * 1024 * 1024

const Upload = z.strictObject({
  source: z.string().min(1).describe('File or folder on the grading machine'),
  target: z.string().min(1).describe('Path in the sandbox, absolute or relative to the workdir'),
})
const seconds = z.number().positive().max(86_400)
const RewardChannel = z.union([
  z.enum(['exit_code', 'stdout']),
  z.strictObject({ file: z.string().min(1).describe('Read after all processes of the command have ended') }),
])
type RewardChannel = z.infer<typeof RewardChannel>

const CommandSettings = z.strictObject({
  kind: z.literal('command'),
  ...testedFileSettings,
  files: z.array(Upload).default([]).describe("The operator's files, copied over the agent's: tests, a checker"),
  command: z.string().min(1).describe("Shell command for /bin/sh in a new sandbox with the agent's files"),
  cwd: z.string().min(1).optional().describe('Absent: the workdir'),
  timeout_seconds: seconds.default(600).describe('A longer run gets the lowest reward'),
  reward: RewardChannel.default('exit_code').describe(
    'exit_code: 1 for exit code 0, else 0; stdout: its last line; {file: path}: the content of that file',
  ),
  reward_range: rewardRange,
  missing_reward: z
    .enum(['zero', 'fail'])
    .default('zero')
    .describe(
      'Result if the reward is missing, unreadable or outside of reward_range. zero: the lowest reward, because the ' +
        "agent's code can cause it. fail: a failure of the grader, unless the same command gives a reward without the " +
        "agent's files",
    ),
  score: z
    .strictObject({
      command: z
        .string()
        .min(1)
        .describe('Shell command for /bin/sh in a second new sandbox; its output is the reward'),
      outputs: z
        .array(z.string().min(1))
        .min(1)
        .describe('Files and folders copied from the first sandbox to the same paths'),
      files: z.array(Upload).default([]),
      timeout_seconds: seconds.default(600),
      reward: RewardChannel.default('stdout'),
    })
    .optional()
    .describe('Computes the reward in a sandbox in which no graded code runs'),
})
const CommandConfig = CommandSettings.refine(
  ({ reward, score, reward_range: [least, most] }) =>
    (score?.reward ?? reward) !== 'exit_code' || (least <= 0 && most >= 1),
  { path: ['reward_range'], error: 'must include 0 and 1, the rewards of exit_code' },
)
type CommandConfig = z.infer<typeof CommandConfig>

/** One command and the channel of its reward. */
interface Step {
  name: 'command' | 'score'
  command: string
  cwd?: string | undefined
  timeout_seconds: number
  reward: RewardChannel
  /** Files of the operator. */
  files: readonly z.infer<typeof Upload>[]
}

/** Runs a command of the operator over the agent's files, in a sandbox that the agent never entered. */
export const command: Plug<typeof CommandConfig, EvaluatorDeps, Evaluator> = {
  config: CommandConfig,
  create: (config) => ({
    needs: { sandbox: true, agentState: false, messages: false },
    rewards: config.reward_range,
    check: (assertUpload) => assertSources([...config.files, ...(config.score?.files ?? [])], assertUpload),
    collect: (agent, { submission }) => collectFiles(agent, submission, config),
    evaluate: (evaluation) => evaluate(config, evaluation),
  }),
}

async function evaluate(config: CommandConfig, evaluation: Evaluation): Promise<EvalResult> {
  const grader = await evaluation.grader()
  await writeLeftOut(evaluation.evidence, 'left-out.json', await restoreFiles(grader, evaluation.submission, config))
  await uploadFiles(grader, config.files)
  const { score } = config
  const first: Step = { name: 'command', ...config }
  // With a score command, the exit code of the first command is not the verdict.
  if (score === undefined) return gradeStep(grader, first, config, evaluation)
  const ran = await runStep(grader, first, evaluation)
  if (ran.isTimedOut) return timedOut(first, ran, config)
  const scorer = await evaluation.grader()
  const missing = await carryOutputs(grader, scorer, config, evaluation)
  if (missing !== undefined) return lowest(config, { ...toMetadata(ran), missing_output: missing })
  await uploadFiles(scorer, score.files)
  const { metadata, ...said } = await gradeStep(scorer, { name: 'score', ...score }, config, evaluation)
  return { ...said, metadata: { ...metadata, command: toMetadata(ran) } }
}

async function uploadFiles(workspace: Workspace, files: readonly z.infer<typeof Upload>[]): Promise<void> {
  for (const { source, target } of files) {
    const path = insideOf(workspace, target)
    await clearLinks(workspace, path)
    await workspace.upload(source, path)
  }
}

async function runStep(grader: Workspace, step: Step, evaluation: Evaluation): Promise<CommandResult> {
  const { env, evidence } = evaluation
  const ran = await runGrading(grader, {
    name: `The ${step.name}`,
    command: ['/bin/sh', '-c', step.command],
    cwd: step.cwd,
    env,
    timeoutMs: step.timeout_seconds * 1000,
    outputBytes: OUTPUT_BYTES,
    control: () => openControl(step, evaluation),
  })
  await evidence.write(`${step.name}-stdout.log`, toEvidence(ran.stdout, ran.stdoutBytes))
  await evidence.write(`${step.name}-stderr.log`, toEvidence(ran.stderr, ran.stderrBytes))
  return ran
}

/** Starts a new sandbox with the operator's files of the step and without the agent's files. */
async function openControl({ files }: Step, evaluation: Evaluation): Promise<Workspace> {
  const control = await evaluation.grader()
  await uploadFiles(control, files)
  return control
}

async function gradeStep(
  grader: Workspace,
  step: Step,
  config: CommandConfig,
  evaluation: Evaluation,
): Promise<EvalResult> {
  const { reward } = step
  if (typeof reward === 'object') await removeFile(grader, reward.file)
  const ran = await runStep(grader, step, evaluation)
  if (ran.isTimedOut) return timedOut(step, ran, config)
  if (reward === 'exit_code') return { outcome_reward: ran.exitCode === 0 ? 1 : 0, metadata: toMetadata(ran) }
  const read = await readReward(grader, reward, ran)
  const from = reward === 'stdout' ? `The last line of the ${step.name}'s stdout` : reward.file
  const parsed = 'problem' in read ? { problem: `The ${step.name} ${read.problem}` } : parseReward(read.text, from)
  const problem = 'problem' in parsed ? parsed.problem : rangeProblem(parsed.result, config.reward_range)
  if ('result' in parsed && problem === undefined) {
    return { ...parsed.result, metadata: { ...parsed.result.metadata, ...toMetadata(ran) } }
  }
  const message = `${problem} (the ${step.name} ${endingOf(ran)})`
  if (config.missing_reward === 'fail') {
    throw new RolloutError('evaluator.crashed', `${message}; see ${step.name}-stderr.log`)
  }
  return lowest(config, { ...toMetadata(ran), missing_reward: message })
}

/** Removes the reward file of an earlier run. */
async function removeFile(grader: Workspace, path: string): Promise<void> {
  const script = 'rm -rf -- "$1" && mkdir -p -- "$(dirname -- "$1")"'
  const removed = await grader.run({
    command: ['/bin/sh', '-c', script, 'sh', insideOf(grader, path)],
    timeoutMs: 30_000,
  })
  if (removed.exitCode === 0) return
  throw new RolloutError(
    'evaluator.crashed',
    `${path} cannot be created in the grader's sandbox. Set reward.file to a writable path.`,
  )
}

type RewardText = { text: string } | { problem: string }

async function readReward(
  grader: Workspace,
  channel: Exclude<RewardChannel, 'exit_code'>,
  ran: CommandResult,
): Promise<RewardText> {
  if (channel === 'stdout') return lastLine(ran)
  try {
    return { text: (await grader.readFile(channel.file, { maxBytes: REWARD_BYTES })).toString('utf8') }
  } catch (error) {
    if (!(error instanceof RolloutError) || error.boundary !== 'workspace') throw error
    return { problem: `left no reward at ${channel.file}: ${error.message}` }
  }
}

function lastLine({ stdout, stdoutBytes }: CommandResult): RewardText {
  if (stdoutBytes > stdout.length)
    return { problem: `wrote ${stdoutBytes} bytes to stdout, so its last line is unknown` }
  const text = stdout.toString('utf8').trimEnd().split('\n').at(-1)?.trim() ?? ''
  return text === '' ? { problem: 'wrote nothing to stdout' } : { text }
}

/**
 * Copies outputs without links, because a link could expose files of the scorer. Returns the first output that is missing or
 * cannot be copied: the graded code caused that.
 */
async function carryOutputs(
  from: Workspace,
  to: Workspace,
  config: CommandConfig,
  { submission, evidence }: Evaluation,
): Promise<string | undefined> {
  const leftOut: LeftOut[] = []
  const scratch = join(submission, `outputs-${randomBytes(8).toString('hex')}`)
  await mkdir(scratch)
  try {
    for (const [index, path] of config.score!.outputs.entries()) {
      const copy = join(scratch, String(index))
      try {
        const missing = await from.download(insideOf(from, path), copy, toLimits(config))
        leftOut.push(...missing.map((file) => ({ ...file, path: posix.join(path, file.path) })))
      } catch (error) {
        if (!(error instanceof RolloutError) || error.boundary !== 'workspace') throw error
        return `${path}: ${error.message}`
      }
      await to.upload(copy, insideOf(to, path))
    }
    return undefined
  } finally {
    await rm(scratch, { recursive: true, force: true })
    await writeLeftOut(evidence, 'left-out-outputs.json', leftOut)
  }
}

function timedOut({ name, timeout_seconds: limit }: Step, ran: CommandResult, config: CommandConfig): EvalResult {
  const message = `The ${name} was ended after ${limit} s`
  return lowest(config, { ...toMetadata(ran), test_timeout: true, message })
}

function lowest({ reward_range: range }: CommandConfig, metadata: Record<string, unknown>): EvalResult {
  return { outcome_reward: range[0], metadata }
}

function endingOf({ exitCode, signal }: CommandResult): string {
  return exitCode === null ? `was ended by ${signal}` : `exited with ${exitCode}`
}
