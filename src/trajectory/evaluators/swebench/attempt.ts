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
import { findRepo, type GitPlace } from './git.ts'
import type { Instance } from './instance.ts'
import { withDirectives, type Recipe } from './recipes.ts'
import { runTests, type TestRun } from './run-tests.ts'

export interface GradingPlan {
  instance: Instance
  recipe: Recipe
  /** Those that are run. */
  testFiles: readonly string[]
  /** Those that get tests of ours. */
  canaryFiles: readonly string[]
  base: string
  repoDir: string | undefined
  exclude: readonly string[]
  protected: readonly string[]
  editable: readonly string[]
  timeoutMs: number
}

/** Changes of the agent's that were not graded as they are. */
type NotGraded = Pick<ChosenChanges, 'dropped' | 'merged'>

export type Attempt =
  | { kind: 'unappliable'; why: string }
  /** Nothing was left to grade. */
  | ({ kind: 'empty' } & NotGraded)
  | ({
      kind: 'ran'
      run: TestRun
      command: string
      canaries: readonly Canary[]
      graded: Buffer
    } & NotGraded)

/**
 * In a new sandbox: the repository as its image has it, with what may be graded of the patch, then the tests over it, then
 * the tests' run. The order is the point: what the tests are is settled after all that the agent has a say in. Without a
 * patch it shows what a run is like that no agent had a hand in.
 */
export async function attempt(
  evaluation: Evaluation,
  plan: GradingPlan,
  { patch, secret }: { patch?: Uint8Array; secret: string },
): Promise<Attempt> {
  const { place, start, grader } = await openGrader(evaluation, plan)
  const tests = await loadTestChanges(place, start, plan.instance.testPatch)
  let chosen: ChosenChanges = { taken: [], dropped: [], merged: [] }
  if (patch !== undefined) {
    const loaded = await loadAgentChanges(place, start, patch)
    if (loaded.changes === undefined) return { kind: 'unappliable', why: loaded.why }
    const { exclude, protected: globs, editable, instance, recipe } = plan
    const { goldPaths, testPaths } = instance
    chosen = await chooseAgentChanges(place, start, loaded.changes, {
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
  const written = await writeChanges(place, start, [...taken, ...tests])
  if (written.patch === undefined) return { kind: 'unappliable', why: written.why }
  await removeRoom(grader, place)
  const { runner } = plan.recipe
  const canaries =
    runner === undefined ? [] : await plantCanaries(grader, place.repo, runner, { files: plan.canaryFiles, secret })
  const deleted = new Set(tests.filter(({ status }) => status === 'D').map(({ path }) => path))
  const directives = plan.recipe.toDirectives(plan.testFiles.filter((file) => !deleted.has(file)))
  const command = withDirectives(withCanaries(plan.recipe.command, runner, canaries), directives)
  const { recipe, timeoutMs } = plan
  const run = await runTests(grader, { repo: place.repo, recipe, command, env: evaluation.env, timeoutMs })
  return { kind: 'ran', run, command, canaries, dropped, merged, graded: written.patch }
}

/** Throws when a new sandbox does not have what the row says. */
export async function openGrader(
  evaluation: Evaluation,
  plan: GradingPlan,
): Promise<{ grader: Workspace; place: GitPlace; start: Start }> {
  const grader = await evaluation.grader()
  const repo = await findRepo(grader, plan.repoDir)
  const room = `/tmp/grade-${randomBytes(8).toString('hex')}`
  const place = { workspace: grader, repo, room, base: plan.base }
  return { grader, place, start: await loadStart(place, plan.exclude) }
}

async function removeRoom(grader: Workspace, { room }: GitPlace): Promise<void> {
  await grader.run({ command: ['rm', '-rf', '--', room], timeoutMs: 60_000 })
}
