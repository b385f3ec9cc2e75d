import { randomBytes } from 'node:crypto'
import type { Workspace } from '../../../model/workspace.ts'
import type { Evaluation } from '../evaluator.ts'
import type { ChosenChanges } from '../../grading/choose-changes.ts'
import {
  chooseAgentChanges,
  loadAgentChanges,
  loadStart,
  loadTestChanges,
  writeChanges,
  type Start,
} from './build-tree.ts'
import { plantCanaries, withCanaries, type Canary } from './canary.ts'
import { findRepo, type GitTarget } from './git.ts'
import type { Instance } from './instance.ts'
import { withDirectives, type Recipe } from './recipes.ts'
import { runTests, type TestRun } from './run-tests.ts'

export interface GradingPlan {
  instance: Instance
  recipe: Recipe
  /** Test files to run. */
  testFiles: readonly string[]
  /** Test files that get canary tests. */
  canaryFiles: readonly string[]
  base: string
  repoDir: string | undefined
  exclude: readonly string[]
  protected: readonly string[]
  editable: readonly string[]
  timeoutMs: number
}

/** Changes of the agent that were not graded unchanged. */
type NotGraded = Pick<ChosenChanges, 'dropped' | 'merged'>

export type Attempt =
  | { kind: 'unappliable'; why: string }
  /** No gradable change was left. */
  | ({ kind: 'empty' } & NotGraded)
  | ({
      kind: 'ran'
      run: TestRun
      command: string
      canaries: readonly Canary[]
      graded: Buffer
    } & NotGraded)

/**
 * Starts a new sandbox with the repository of its image, applies the gradable changes of the patch, then the tests, and runs
 * the tests. The tests are written after the agent's changes, so that the agent cannot change them. Without a patch, the run
 * is a control run.
 */
export async function attempt(
  evaluation: Evaluation,
  plan: GradingPlan,
  { patch, secret }: { patch?: Uint8Array; secret: string },
): Promise<Attempt> {
  const { target, start, grader } = await openGrader(evaluation, plan)
  const tests = await loadTestChanges(target, start, plan.instance.testPatch)
  let chosen: ChosenChanges = { taken: [], dropped: [], merged: [] }
  if (patch !== undefined) {
    const loaded = await loadAgentChanges(target, start, patch)
    if (loaded.changes === undefined) return { kind: 'unappliable', why: loaded.why }
    const { exclude, protected: globs, editable, instance, recipe } = plan
    const { goldPaths, testPaths } = instance
    chosen = await chooseAgentChanges(target, start, loaded.changes, {
      exclude,
      protected: globs,
      editable,
      goldPaths,
      testPaths: new Set([...testPaths, ...plan.testFiles]),
      command: `${recipe.setup}\n${recipe.command}`,
    })
  }
  const { taken, dropped, merged } = chosen
  if (patch !== undefined && taken.length === 0) return { kind: 'empty', dropped, merged }
  const written = await writeChanges(target, start, [...taken, ...tests])
  if (written.patch === undefined) return { kind: 'unappliable', why: written.why }
  await removeScratch(grader, target)
  const { runner } = plan.recipe
  const canaries =
    runner === undefined ? [] : await plantCanaries(grader, target.repo, runner, { files: plan.canaryFiles, secret })
  const deleted = new Set(tests.filter(({ status }) => status === 'D').map(({ path }) => path))
  const directives = plan.recipe.toDirectives(plan.testFiles.filter((file) => !deleted.has(file)))
  const command = withDirectives(withCanaries(plan.recipe.command, runner, canaries), directives)
  const { recipe, timeoutMs } = plan
  const run = await runTests(grader, { repo: target.repo, recipe, command, env: evaluation.env, timeoutMs })
  return { kind: 'ran', run, command, canaries, dropped, merged, graded: written.patch }
}

/** Starts a grading sandbox. Throws if it lacks the repository or commit of the row. */
export async function openGrader(
  evaluation: Evaluation,
  plan: GradingPlan,
): Promise<{ grader: Workspace; target: GitTarget; start: Start }> {
  const grader = await evaluation.grader()
  const repo = await findRepo(grader, plan.repoDir)
  const scratch = `/tmp/grade-${randomBytes(8).toString('hex')}`
  const target = { workspace: grader, repo, scratch, base: plan.base }
  return { grader, target, start: await loadStart(target, plan.exclude) }
}

async function removeScratch(grader: Workspace, { scratch }: GitTarget): Promise<void> {
  await grader.run({ command: ['rm', '-rf', '--', scratch], timeoutMs: 60_000 })
}
