import { randomBytes } from 'node:crypto'
import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import { RolloutError } from '../../model/failure.ts'
import type { EvalResult } from '../../model/reward.ts'
import { writeDropped } from '../grading/choose-changes.ts'
import { DEFAULT_EXCLUDE, DEFAULT_PROTECTED } from '../grading/protected-files.ts'
import { toEvidence } from '../grading/run-grading.ts'
import type { Evaluation, Evaluator, EvaluatorDeps } from './evaluator.ts'
import { attempt, openGrader, type Attempt, type GradingPlan } from './swebench/attempt.ts'
import { canaryFiles } from './swebench/canary.ts'
import { collectPatch, loadSubmission } from './swebench/collect-patch.ts'
import { HarnessConfig, toSwebenchConfig } from './swebench/harness-config.ts'
import { InstanceRow, toInstance, type Instance } from './swebench/instance.ts'
import type { TestRun } from './swebench/run-tests.ts'
import { assertPatchCommand, collectByCommand, type PatchCommand } from './swebench/patch-command.ts'
import { toRecipe } from './swebench/recipes.ts'
import { describeGaps, toGapNotes } from './swebench/gaps.ts'
import { fractionOf, isReported } from './swebench/report.ts'
import { decidingGaps, isNotRun, judgeCanaries, needsControlRun, readRun, type Reading } from './swebench/verdict.ts'

const SwebenchConfig = z.strictObject({
  kind: z.literal('swebench'),
  instance: InstanceRow.describe('Unchanged row of SWE-bench or a similar dataset'),
  repo_dir: z.string().optional().describe('Path of the repository; absent: /testbed, or the workdir'),
  base: z.string().optional().describe('Base commit of patches; absent: base_commit'),
  test_cmd: z
    .string()
    .optional()
    .describe('Shell command that runs the tests; test files are appended, or replace {tests}'),
  test_files: z.array(z.string()).optional().describe('Test files to run; absent: those of the test patch'),
  log_parser: z.string().optional().describe('Parser of the test output; absent: chosen by repository or test command'),
  setup: z.array(z.string()).optional().describe('Shell lines that run before the tests, such as a build'),
  patch_command: z
    .string()
    .min(1)
    .optional()
    .describe(
      "Shell command for bash in the agent's sandbox that prints the patch; absent: the changes that git reports in repo_dir",
    ),
  collect_timeout_seconds: z.number().positive().default(300).describe('Seconds for patch_command'),
  test_timeout_seconds: z.number().positive().default(1800),
  exclude: z
    .array(z.string())
    .default([...DEFAULT_EXCLUDE])
    .describe('File patterns that are not part of a patch'),
  protected: z
    .array(z.string())
    .default([...DEFAULT_PROTECTED])
    .describe('File patterns whose repository version is graded, unless the gold patch changes them'),
  editable: z
    .array(z.string())
    .default([])
    .describe('File patterns of protected files whose version of the agent is graded, such as CMakeLists.txt'),
  max_patch_bytes: z
    .int()
    .positive()
    .default(10 * 1024 * 1024),
  canary: z
    .enum(['auto', 'require', 'off'])
    .default('auto')
    .describe('Whether to add tests that must fail to the test files; require: no reward if they do not run'),
})
type SwebenchConfig = z.infer<typeof SwebenchConfig>

/**
 * Reward 1 if the required tests of a dataset's row pass with the agent's patch. Grades the changes that git reports in the
 * agent's repository; tests and test runners come from the row and the image.
 */
export const swebench: Plug<typeof SwebenchConfig, EvaluatorDeps, Evaluator> = {
  config: SwebenchConfig,
  create(config) {
    const plan = toPlan(config)
    return {
      needs: { sandbox: true, agentState: false, messages: false },
      collect: async (agent, { submission, env }) => {
        const command = toPatchCommand(config, env)
        if (command !== undefined) return collectByCommand(agent, submission, command)
        await collectPatch(agent, submission, {
          repo: config.repo_dir,
          base: plan.base,
          exclude: config.exclude,
          maxBytes: config.max_patch_bytes,
        })
      },
      evaluate: (evaluation) => evaluate(evaluation, plan, config),
    }
  },
}

/** The same evaluator under NVIDIA Polar's name, with its settings. */
export const swebenchHarness: Plug<typeof HarnessConfig, EvaluatorDeps, Evaluator> = {
  config: HarnessConfig,
  create: (config, deps) => swebench.create(SwebenchConfig.parse(toSwebenchConfig(config)), deps),
}

function toPatchCommand(config: SwebenchConfig, env: Readonly<Record<string, string>>): PatchCommand | undefined {
  const { patch_command: command, collect_timeout_seconds: seconds, max_patch_bytes: maxBytes } = config
  return command === undefined ? undefined : { command, timeoutMs: seconds * 1000, maxBytes, env }
}

async function evaluate(evaluation: Evaluation, plan: GradingPlan, config: SwebenchConfig): Promise<EvalResult> {
  const submission = await loadSubmission(evaluation.submission)
  if (submission.kind === 'none') {
    const { grader } = await openGrader(evaluation, plan)
    const command = toPatchCommand(config, evaluation.env)
    if (command !== undefined) await assertPatchCommand(grader, command)
    return finish(evaluation, plan, { failed_collect: true, patch_exists: false, message: submission.why })
  }
  await evaluation.evidence.write('patch.diff', submission.patch)
  if (submission.patch.length === 0) return finish(evaluation, plan, { empty_generation: true, patch_exists: false })

  const secret = randomBytes(32).toString('hex')
  const made = await attempt(evaluation, plan, { patch: submission.patch, secret })
  if (made.kind === 'unappliable')
    return finish(evaluation, plan, { failed_apply_patch: true, patch_exists: true, message: made.why })
  await writeDropped(evaluation.evidence, made)
  if (made.kind === 'empty')
    return finish(evaluation, plan, { empty_generation: true, patch_exists: true, ...notes(made) })
  await evaluation.evidence.write('graded.diff', made.graded)
  return judge(evaluation, plan, config, { ...made, secret })
}

async function judge(
  evaluation: Evaluation,
  plan: GradingPlan,
  config: SwebenchConfig,
  made: Attempt & { kind: 'ran' } & { secret: string },
): Promise<EvalResult> {
  const { run } = made
  await evaluation.evidence.write('test-output.log', toEvidence(run.output, run.outputBytes))
  const fields = {
    patch_exists: true,
    patch_successfully_applied: true,
    exit_code: run.exitCode,
    out_of_memory: run.isOutOfMemory,
    test_seconds: run.durationMs / 1000,
    command: made.command,
    ...notes(made),
  }
  if (run.isTimedOut) return finish(evaluation, plan, { ...fields, test_timeout: true })
  if (run.isFlood) return finish(evaluation, plan, { ...fields, output_too_large: true })

  const { instance, recipe } = plan
  const reading = readRun(run, made.canaries, instance, recipe.evalType)
  const control = needsControlRun(run, reading) ? await runControl(evaluation, plan, made.secret) : undefined
  if (control !== undefined && (isNotRun(control.run) || !control.reading.hasResults)) {
    await evaluation.evidence.write('control-output.log', toEvidence(control.run.output, control.run.outputBytes))
    throw new RolloutError(
      'evaluator.crashed',
      `The tests of ${instance.id} cannot be run in the grader's sandbox, with or without the patch (exit code ${control.run.exitCode}, ` +
        `command ${made.command}): ${lastLine(control.run.output.toString('utf8')) || control.run.setupLog}`,
    )
  }
  const { canary, forgery } = judgeCanaries(run, reading, control)
  if (config.canary === 'require' && canary !== 'failed' && forgery === undefined && reading.resolved)
    throw new RolloutError(
      'evaluator.crashed',
      `No canary test could be added to the tests of ${instance.id}, and canary is "require". Set it to "auto" to grade without one.`,
    )
  const gaps = forgery === undefined ? decidingGaps(reading) : []
  const unknown =
    gaps.length === 0 ? [] : await findUnknownNames(evaluation, plan, { gaps, control, secret: made.secret })
  const result = await finish(evaluation, plan, {
    ...fields,
    canary,
    disputed_tests: reading.disputed,
    ...toGapNotes(reading),
    control_run: control !== undefined,
    tests: reading,
    ...(forgery !== undefined && { forged_results: true, message: forgery }),
    ...(unknown.length > 0 && { error_eval: true }),
  })
  if (unknown.length === 0) return result
  throw new RolloutError('evaluator.tests-not-reported', describeGaps(instance.id, unknown, reading))
}

interface Control {
  run: TestRun
  reading: Reading
}

/**
 * Returns the tests that no run reports, because the log uses other names. The run with the gold patch decides; without a
 * runnable gold patch, the run without any patch. A test that this run reports is missing because of the agent's patch.
 */
async function findUnknownNames(
  evaluation: Evaluation,
  plan: GradingPlan,
  { gaps, control, secret }: { gaps: readonly string[]; control: Control | undefined; secret: string },
): Promise<string[]> {
  const reference = (await runGold(evaluation, plan, secret)) ?? control ?? (await runControl(evaluation, plan, secret))
  return gaps.filter((test) => !isReported(test, reference.reading.statuses))
}

/** Undefined if there is no gold patch or its run has no results. */
async function runGold(evaluation: Evaluation, plan: GradingPlan, secret: string): Promise<Control | undefined> {
  const { instance, recipe } = plan
  if (instance.goldPatch === '') return undefined
  const made = await attempt(evaluation, plan, { patch: Buffer.from(instance.goldPatch), secret })
  if (made.kind !== 'ran' || made.run.isTimedOut) return undefined
  const reading = readRun(made.run, made.canaries, instance, recipe.evalType)
  return reading.hasResults ? { run: made.run, reading } : undefined
}

/** Runs the tests without the patch in a new sandbox. */
async function runControl(evaluation: Evaluation, plan: GradingPlan, secret: string): Promise<Control> {
  const made = await attempt(evaluation, plan, { secret })
  if (made.kind !== 'ran' || made.run.isTimedOut)
    throw new RolloutError('evaluator.crashed', `The tests of ${plan.instance.id} do not end without the patch either`)
  return { run: made.run, reading: readRun(made.run, made.canaries, plan.instance, plan.recipe.evalType) }
}

/** Report fields: NVIDIA's keys, then those of the swebench package, then Polar's. */
interface ReportFields {
  empty_generation?: boolean
  failed_apply_patch?: boolean
  failed_collect?: boolean
  forged_results?: boolean
  test_timeout?: boolean
  output_too_large?: boolean
  exit_code?: number | null
  patch_exists: boolean
  tests?: Reading
  [other: string]: unknown
}

async function finish(
  evaluation: Evaluation,
  plan: GradingPlan,
  { tests, ...fields }: ReportFields,
): Promise<EvalResult> {
  const resolved = tests?.resolved === true && fields.forged_results !== true
  const report = {
    instance_id: plan.instance.id,
    empty_generation: false,
    resolved,
    failed_apply_patch: false,
    error_eval: false,
    test_timeout: false,
    exit_code: null,
    patch_is_None: !fields.patch_exists,
    patch_successfully_applied: false,
    forged_results: false,
    ...fields,
    ...(tests?.report ?? {
      FAIL_TO_PASS: { success: [], failure: plan.instance.FAIL_TO_PASS },
      PASS_TO_PASS: { success: [], failure: plan.instance.PASS_TO_PASS },
    }),
  }
  await evaluation.evidence.write('report.json', `${JSON.stringify(report, undefined, 2)}\n`)
  // Components of forged results are 0, because a trainer may add components up.
  const counts = tests !== undefined && !report.forged_results
  return {
    outcome_reward: resolved ? 1 : 0,
    components: {
      fail_to_pass: counts ? fractionOf(tests.report.FAIL_TO_PASS) : 0,
      pass_to_pass: counts ? fractionOf(tests.report.PASS_TO_PASS) : 0,
    },
    metadata: report,
  }
}

const MAX_NAMES = 200

function notes({ dropped }: { dropped: readonly { path: string; why: string }[] }): Record<string, unknown> {
  return { dropped_files: dropped.slice(0, MAX_NAMES), dropped_count: dropped.length }
}

function lastLine(text: string): string {
  return text.trimEnd().split('\n').at(-1)!.slice(-500)
}

function toPlan(config: SwebenchConfig): GradingPlan {
  const instance = loadInstance(config)
  const recipe = toRecipe(instance, {
    test_cmd: config.test_cmd,
    log_parser: config.log_parser,
    setup: config.setup,
  })
  const testFiles = config.test_files ?? instance.testFiles
  return {
    instance,
    recipe,
    testFiles,
    canaryFiles: config.canary === 'off' ? [] : canaryFiles(recipe.runner, testFiles),
    base: config.base ?? instance.baseCommit,
    repoDir: config.repo_dir,
    exclude: config.exclude,
    protected: config.protected,
    editable: config.editable,
    timeoutMs: config.test_timeout_seconds * 1000,
  }
}

function loadInstance({ instance }: SwebenchConfig): Instance {
  try {
    return toInstance(instance)
  } catch (error) {
    if (!(error instanceof RangeError)) throw error
    throw new RolloutError('config.invalid', error.message, { cause: error })
  }
}
