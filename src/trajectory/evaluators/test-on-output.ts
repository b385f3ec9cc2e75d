import { readdir, readFile, writeFile } from 'node:fs/promises'
import { join, posix } from 'node:path'
import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { RolloutError } from '../../model/failure.ts'
import type { EvalResult } from '../../model/reward.ts'
import type { Workspace } from '../../model/workspace.ts'
import type { Rules } from '../grading/change-policy.ts'
import { chooseChanges, writeDropped } from '../grading/choose-changes.ts'
import { DEFAULT_EXCLUDE, DEFAULT_PROTECTED } from '../grading/protected-files.ts'
import { collectTree, compareTree, whyNotPacked, type RepoDifference } from '../grading/repo-tree.ts'
import { runGrading, tail, toEvidence } from '../grading/run-grading.ts'
import type { Collection, Evaluation, Evaluator, EvaluatorDeps } from './evaluator.ts'
import { compareTests, parseTestOutput, TestStatus } from './test-on-output-results.ts'

const OUTPUT_BYTES = 32 * 1024 * 1024

const Expected = z.record(z.string(), TestStatus)

const TestOnOutputConfig = z.strictObject({
  kind: z.literal('test_on_output'),
  test_command: z
    .string()
    .min(1)
    .describe("Shell command for bash in the repository of a new sandbox; must print pytest's -rA or -v output"),
  expected_output_json: z
    .union([Expected, z.string().transform(parseExpected).pipe(Expected)])
    .refine((expected) => Object.keys(expected).length > 0, 'must not be empty')
    .describe('Expected status by test id, as an object or its JSON; PASSED, FAILED, ERROR, SKIPPED, XFAIL, XPASS'),
  strict: z.boolean().default(false).describe('Reject reports of other tests'),
  repo_dir: z
    .string()
    .min(1)
    .default('/testbed')
    .describe('Path of the repository, absolute or relative to the workdir'),
  apply_timeout: z.number().positive().max(86_400).default(60).describe('Seconds for patch_command'),
  test_timeout: z.number().positive().max(86_400).default(1200).describe('Seconds; a longer run gets a reward of 0'),
  exit_codes: z
    .array(z.int())
    .min(1)
    .default([0, 1])
    .describe("Accepted exit codes; absent: 0 and 1, which is pytest's exit code for failed tests"),
  patch_command: z
    .string()
    .min(1)
    .optional()
    .describe(
      "Shell command for bash in the agent's sandbox that prints the patch; absent: all files that git does not ignore",
    ),
  exclude_patterns: z
    .array(z.string().min(1))
    .default([])
    .describe('Globs of files whose version of the agent is ignored'),
  protected: z
    .array(z.string().min(1))
    .default([...DEFAULT_PROTECTED])
    .describe('The same for tests and their configuration; files of expected tests are always ignored'),
  editable: z
    .array(z.string().min(1))
    .default([])
    .describe('Globs of protected files whose version of the agent is graded, such as CMakeLists.txt'),
  max_mb: z.number().positive().max(100_000).default(512).describe("Size limit of the agent's files in megabytes"),
})
type TestOnOutputConfig = z.infer<typeof TestOnOutputConfig>

function parseExpected(text: string, context: z.core.$RefinementCtx<string>): unknown {
  try {
    return JSON.parse(text)
  } catch {
    context.addIssue({ code: 'custom', message: 'is not JSON', input: text })
    return z.NEVER
  }
}

/** Runs tests over the agent's changes of a repository and compares their statuses with the expected ones. */
export const testOnOutput: Plug<typeof TestOnOutputConfig, EvaluatorDeps, Evaluator> = {
  config: TestOnOutputConfig,
  create: (config) => ({
    needs: { sandbox: true, agentState: false, messages: false },
    collect: (agent, collection) => collect(config, agent, collection),
    evaluate: (evaluation) => evaluate(config, evaluation),
  }),
}

/** Files of the submission. */
const TREE = 'tree.tar'
const PATCH = 'patch.diff'
const NOTE = 'nothing-taken.txt'

async function collect(config: TestOnOutputConfig, agent: Workspace, { submission, env }: Collection): Promise<void> {
  const maxBytes = maxBytesOf(config)
  const problem =
    config.patch_command === undefined
      ? await collectTree(agent, config.repo_dir, join(submission, TREE), maxBytes)
      : await collectPatch(config, agent, { env, maxBytes, target: join(submission, PATCH) })
  if (problem !== undefined) await writeFile(join(submission, NOTE), problem)
}

function maxBytesOf({ max_mb: mb }: TestOnOutputConfig): number {
  return Math.floor(mb * 1024 * 1024)
}

async function collectPatch(
  config: TestOnOutputConfig,
  agent: Workspace,
  { env, maxBytes, target }: { env: Readonly<Record<string, string>>; maxBytes: number; target: string | undefined },
): Promise<string | undefined> {
  const command = ['bash', '-c', config.patch_command!] as const
  const ran = await agent.run({
    command,
    cwd: config.repo_dir,
    env,
    timeoutMs: config.apply_timeout * 1000,
    outputBytes: maxBytes,
  })
  if (ran.isTimedOut) return `patch_command took longer than ${config.apply_timeout} s`
  if (ran.exitCode !== 0) return tail(ran.stderr, 500) || `exit code ${ran.exitCode}`
  if (ran.stdoutBytes > maxBytes)
    throw new RolloutError('workspace.too-large', `The patch has ${ran.stdoutBytes} bytes`)
  if (target !== undefined) await writeFile(target, ran.stdout)
  return undefined
}

/** If the files cannot be collected from a clean sandbox either, the agent did not cause the failure. */
async function gradeMissingSubmission(
  config: TestOnOutputConfig,
  grader: Workspace,
  { env, submission }: Evaluation,
): Promise<EvalResult> {
  const why = await readFile(join(submission, NOTE), 'utf8')
  const clean =
    config.patch_command === undefined
      ? await whyNotPacked(grader, config.repo_dir, maxBytesOf(config))
      : await collectPatch(config, grader, { env, maxBytes: maxBytesOf(config), target: undefined })
  if (clean !== undefined) {
    const what = config.patch_command === undefined ? `The files of ${config.repo_dir}` : 'The output of patch_command'
    throw new RolloutError('evaluator.crashed', `${what} cannot be collected, not even from a new sandbox: ${clean}`)
  }
  return toResult({ ...EMPTY_REPORT, empty_generation: true }, { message: why })
}

interface Report {
  resolved: boolean
  empty_generation: boolean
  failed_apply_patch: boolean
  error_eval: boolean
  test_timeout: boolean
  exit_code: number | null
}
const EMPTY_REPORT: Report = {
  resolved: false,
  empty_generation: false,
  failed_apply_patch: false,
  error_eval: false,
  test_timeout: false,
  exit_code: null,
}

async function evaluate(config: TestOnOutputConfig, evaluation: Evaluation): Promise<EvalResult> {
  const grader = await evaluation.grader()
  const submitted = await findSubmitted(evaluation.submission)
  if (submitted === undefined) return gradeMissingSubmission(config, grader, evaluation)
  const difference = await compareTree(grader, config.repo_dir, submitted)
  if (difference.changes === undefined) {
    return toResult({ ...EMPTY_REPORT, failed_apply_patch: true }, { message: difference.why })
  }
  const chosen = await chooseChanges(difference.changes, toRules(config, difference), difference.store)
  const { taken, dropped } = chosen
  await writeDropped(evaluation.evidence, chosen)
  const about = { changed_files: taken.length, dropped_files: dropped.slice(0, 100), dropped_count: dropped.length }
  if (taken.length === 0) return toResult({ ...EMPTY_REPORT, empty_generation: true }, about)
  await evaluation.evidence.write('graded.patch', toEvidence(await difference.write(taken)))
  return runTests(config, grader, evaluation, about)
}

async function findSubmitted(submission: string): Promise<{ kind: 'tree' | 'patch'; file: string } | undefined> {
  const names = await readdir(submission)
  if (names.includes(PATCH)) return { kind: 'patch', file: join(submission, PATCH) }
  return names.includes(TREE) ? { kind: 'tree', file: join(submission, TREE) } : undefined
}

function toRules(config: TestOnOutputConfig, { basePaths }: RepoDifference): Rules {
  const ids = Object.keys(config.expected_output_json).filter((id) => id.includes('::'))
  return {
    exclude: [...DEFAULT_EXCLUDE, ...config.exclude_patterns],
    protected: config.protected,
    editable: config.editable,
    goldPaths: new Set(),
    testPaths: new Set(ids.map((id) => posix.normalize(id.slice(0, id.indexOf('::'))))),
    command: config.test_command,
    basePaths,
  }
}

async function runTests(
  config: TestOnOutputConfig,
  grader: Workspace,
  evaluation: Evaluation,
  about: Record<string, unknown>,
): Promise<EvalResult> {
  const { env, evidence } = evaluation
  const ran = await runGrading(grader, {
    name: 'test_command',
    control: () => evaluation.grader(),
    command: ['bash', '-c', config.test_command],
    cwd: config.repo_dir,
    env,
    timeoutMs: config.test_timeout * 1000,
    outputBytes: OUTPUT_BYTES,
  })
  await evidence.write('test-stdout.log', toEvidence(ran.stdout, ran.stdoutBytes))
  await evidence.write('test-stderr.log', toEvidence(ran.stderr, ran.stderrBytes))
  const report: Report = { ...EMPTY_REPORT, exit_code: ran.exitCode }
  if (ran.isTimedOut) return toResult({ ...report, test_timeout: true }, about)
  const expected = config.expected_output_json
  const output = `${ran.stdout.toString('utf8')}\n${ran.stderr.toString('utf8')}`
  const found = parseTestOutput(output, Object.keys(expected))
  const { mismatches, unexpected } = compareTests(expected, found)
  await evidence.write('tests.json', JSON.stringify({ found: Object.fromEntries(found), mismatches, unexpected }))
  const isEndingGood = ran.exitCode !== null && config.exit_codes.includes(ran.exitCode)
  const isWhole = ran.stdoutBytes <= ran.stdout.length
  const resolved = isEndingGood && isWhole && mismatches.length === 0 && (!config.strict || unexpected.length === 0)
  return toResult(
    { ...report, resolved, error_eval: !isEndingGood || !isWhole || found.size === 0 },
    { ...about, tests: found.size, mismatches: mismatches.slice(0, 100), ...(config.strict && { unexpected }) },
  )
}

function toResult(report: Report, about: Record<string, unknown>): EvalResult {
  return { outcome_reward: report.resolved ? 1 : 0, metadata: { ...report, ...about } }
}
