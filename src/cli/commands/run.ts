import { watch } from 'node:fs'
import { appendFile, readFile } from 'node:fs/promises'
import { join, resolve } from 'node:path'
import { randomIds } from '../../lib/random-ids.ts'
import { untilAborted } from '../../lib/async/until-aborted.ts'
import { toHangingText, toVisibleLine } from '../../lib/visible-text.ts'
import { isValid } from '../../model/refill.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { runTask, type TaskRun } from '../../node/run-task.ts'
import { SessionFolder, sessionsFolder } from '../../node/session/session-folder.ts'
import type { StageWidths } from '../../node/session/stages.ts'
import type { SessionScore } from '../../trajectory/score-session.ts'
import { defineCommand, EXIT, option, parseNumber, toggle, type ExitCode } from '../command.ts'
import { listenForInterrupt } from '../stop-signals.ts'
import { LOCAL_NODE_FLAGS, openLocalNode } from '../input/local-node.ts'
import { readTasks, TASK_FLAGS, toTaskSources, type TaskSources } from '../input/task-sources.ts'
import { groupOf } from '../input/choose-run.ts'
import type { OpenNode } from '../../compose/open-node.ts'
import { createStageView } from '../views/stage-view.ts'
import { formatTable } from '../views/table.ts'
import { print, printError, printJson, withSnakeKeys } from '../views/print.ts'

const DEFAULT_OUT = join('.polar', 'runs')

export const command = defineCommand({
  name: 'run',
  description:
    'Run tasks on this machine without a server: run the harness in sandboxes, build trajectories and grade them.',
  words: { name: 'FILE…', description: 'Task files: YAML, JSON or JSONL' },
  flags: {
    ...TASK_FLAGS,
    samples: option('N', 'Sessions of each task; overrides num_samples'),
    out: option('DIR', 'Folder for sessions and scores', { default: DEFAULT_OUT }),
    refills: option(
      'N',
      'Limit of sessions of a task that replace sessions failed because of infrastructure (default: its number of samples)',
    ),
    ...LOCAL_NODE_FLAGS,
    watch: toggle('Run again when a task file, or a file of a Harbor task, changes'),
    json: toggle('Print one line of JSON for each session on standard output'),
  },
  examples: [
    'polar run task.yaml',
    'polar run task.yaml --samples 8 --run 4',
    'polar run --harbor tasks/ --harness codex --samples 4',
    'polar run tasks.jsonl --engine-url http://localhost:8000 --out results',
  ],
  async run({ flags, words }): Promise<ExitCode> {
    const dir = resolve(flags.out)
    const samples = whole('samples', flags.samples, 1)
    const refills = whole('refills', flags.refills, 0)
    const sources = await toTaskSources('run', words, flags)
    using interrupted = listenForInterrupt()
    const { modules } = sources
    await using local = await openLocalNode('run', flags, { dir, modules, signal: interrupted.signal })
    if (local === undefined) return EXIT.interrupted
    const { opened, widths } = local
    await addMissingScores(dir)
    const once = (signal: AbortSignal): Promise<ExitCode> =>
      runAll(sources, { opened, widths, dir, samples, refills, asJson: flags.json, signal })
    const code = flags.watch ? await runAgain(sources, once, interrupted.signal) : await once(interrupted.signal)
    return interrupted.signal.aborted ? EXIT.interrupted : code
  },
})

interface RunContext {
  opened: OpenNode
  widths: StageWidths
  dir: string
  samples: number | undefined
  refills: number | undefined
  asJson: boolean
  signal: AbortSignal
}

async function runAll(sources: TaskSources, context: RunContext): Promise<ExitCode> {
  const { opened, widths, dir, samples, asJson, signal } = context
  const given = await readTasks('run', sources, opened)
  const tasks = given.map((task) => (samples === undefined ? task : { ...task, num_samples: samples }))
  const total = tasks.reduce((sum, { num_samples }) => sum + num_samples, 0)
  const ended: SessionOutcome[] = []
  const ids = randomIds(Date.now)
  const runId = ids.next('run')
  const scores = scoresFile(dir)
  let runs: TaskRun[]
  {
    using view = createStageView({
      widths,
      metrics: () => opened.node.metrics,
      progress: () => ({ done: ended.length, total, note: noteOf(ended) }),
    })
    let written = Promise.resolve()
    const onOutcome = (outcome: SessionOutcome): void => {
      ended.push(outcome)
      if (asJson) printJson(toOutcomeJson(outcome))
      else view.print(lineOf(outcome))
      const score = scoreOf(outcome)
      if (score !== undefined) written = written.then(() => appendFile(scores, `${JSON.stringify(score)}\n`))
    }
    const recovered = opened.node.sessions.map(async (session) => {
      signal.addEventListener('abort', () => session.cancel('The run was interrupted.'), { once: true })
      onOutcome(await session.outcome)
    })
    if (recovered.length > 0) view.print(`Restarted ${recovered.length} unfinished sessions of an earlier run.\n`)
    runs = await Promise.all(
      tasks.map((task) =>
        runTask(opened.node, task, { ids, runId, maxRefills: context.refills ?? task.num_samples, signal, onOutcome }),
      ),
    )
    await Promise.all(recovered)
    await written
  }
  if (!asJson) print(summaryOf(runs, { runId, dir, scores }))
  return runs.every(({ task, valid }) => valid >= task.num_samples) ? EXIT.done : EXIT.failed
}

/** Appends the scores of sessions that an earlier, killed run graded without writing their scores. */
async function addMissingScores(dir: string): Promise<void> {
  const file = scoresFile(dir)
  const text = await readFile(file, 'utf8').catch(() => '')
  const known = new Set(text.split('\n').flatMap((line) => /"session_id":"([^"]*)"/.exec(line)?.[1] ?? []))
  const outcomes = await SessionFolder.outcomes(sessionsFolder(dir))
  const missing = outcomes.filter(({ sessionId }) => !known.has(sessionId)).flatMap((outcome) => scoreOf(outcome) ?? [])
  // The last line may be cut off.
  const lead = text === '' || text.endsWith('\n') ? '' : '\n'
  if (missing.length > 0) await appendFile(file, lead + missing.map((score) => `${JSON.stringify(score)}\n`).join(''))
}

function scoresFile(dir: string): string {
  return join(dir, 'scores.jsonl')
}

/** Returns the score for `polar export --rewards`; undefined, not zero, for a session without a grade. */
function scoreOf({ sessionId, taskId, runId, grade }: SessionOutcome): SessionScore | undefined {
  if (grade === undefined) return undefined
  return { ...grade, session_id: sessionId, group_id: runId === undefined ? taskId : groupOf(runId, taskId) }
}

/** The grade has names that the evaluator chose, so its keys stay. */
function toOutcomeJson(outcome: SessionOutcome): unknown {
  return { ...(withSnakeKeys(outcome) as object), grade: outcome.grade }
}

function noteOf(outcomes: readonly SessionOutcome[]): string {
  const rewards = outcomes.flatMap(({ grade }) => grade?.outcome_reward ?? [])
  return rewards.length === 0 ? '' : `mean reward ${mean(rewards).toFixed(3)}`
}

function lineOf(outcome: SessionOutcome): string {
  const { sessionId, taskId, status, grade, counts, failure, timing } = outcome
  const reward = grade?.outcome_reward == null ? 'no reward' : `reward ${grade.outcome_reward}`
  const seconds = timing.run_ms == null ? '' : `, ${(timing.run_ms / 1000).toFixed(1)} s`
  const what = `${counts?.calls ?? 0} calls, ${counts?.tokens.trained ?? 0} tokens to train${seconds}`
  const why =
    failure === undefined ? '' : `\n    ${failure.code}: ${toVisibleLine(failure.message.split('\n')[0] ?? '')}`
  const warnings = (outcome.warnings ?? []).map((warning) => `\n    Warning: ${toVisibleLine(warning)}`).join('')
  return `${status.padEnd(9)}  ${toVisibleLine(taskId)}  ${sessionId}  ${reward}, ${what}${why}${warnings}\n`
}

function summaryOf(
  runs: readonly TaskRun[],
  { runId, dir, scores }: { runId: string; dir: string; scores: string },
): string {
  const rows = runs.map(({ task, outcomes, valid }) => {
    const rewards = outcomes.flatMap(({ grade }) => grade?.outcome_reward ?? [])
    const sum = (pick: (outcome: SessionOutcome) => number): string =>
      String(outcomes.reduce((total, outcome) => total + pick(outcome), 0))
    return [
      task.task_id,
      `${valid}/${task.num_samples}`,
      String(outcomes.length - valid),
      rewards.length === 0 ? '-' : mean(rewards).toFixed(3),
      rewards.length === 0 ? '-' : `${Math.min(...rewards)}…${Math.max(...rewards)}`,
      sum(({ counts }) => counts?.calls ?? 0),
      sum(({ counts }) => counts?.tokens.trained ?? 0),
    ]
  })
  const failures = Map.groupBy(
    runs.flatMap(({ outcomes }) => outcomes).filter((outcome) => !isValid(outcome)),
    ({ failure }) => failure!.code,
  )
  return [
    '\n',
    formatTable([['task', 'valid', 'not scored', 'mean reward', 'rewards', 'calls', 'tokens to train'], ...rows]),
    ...[...failures].map(
      ([code, outcomes]) => `${outcomes.length} × ${code}: ${toHangingText(outcomes[0]!.failure!.message, 4)}\n`,
    ),
    `\nRun       ${runId}\nSessions  ${sessionsFolder(dir)}\nScores    ${scores}\n`,
    `Train     polar export --run ${runId} --format slime --from ${sessionsFolder(dir)} --rewards ${scores} --to traces.jsonl\n`,
  ].join('')
}

function mean(numbers: readonly number[]): number {
  return numbers.reduce((sum, number) => sum + number, 0) / numbers.length
}

/** Editors save a file in several steps. */
const SETTLE_MS = 300

/** Runs the tasks, and again after each change of a file; a change aborts the current run. */
async function runAgain(
  sources: TaskSources,
  once: (signal: AbortSignal) => Promise<ExitCode>,
  signal: AbortSignal,
): Promise<ExitCode> {
  for (;;) {
    const changed = new AbortController()
    let timer: NodeJS.Timeout | undefined
    const onChange = (): void => {
      clearTimeout(timer)
      timer = setTimeout(() => changed.abort(), SETTLE_MS)
    }
    const watchers = [
      ...sources.files.map((file) => watch(resolve(file), onChange)),
      ...sources.swe.map((file) => watch(resolve(file), onChange)),
      ...sources.harbor.map((folder) => watch(resolve(folder), { recursive: true }, onChange)),
    ]
    try {
      const code = await once(AbortSignal.any([signal, changed.signal])).catch((error: unknown) => {
        printError(`${error instanceof Error ? error.message : String(error)}\n`)
        return EXIT.usage
      })
      if (signal.aborted) return code
      printError('Waiting for a change; press Ctrl-C to stop.\n')
      await untilAborted(AbortSignal.any([signal, changed.signal]))
      if (signal.aborted) return code
    } finally {
      clearTimeout(timer)
      for (const watcher of watchers) watcher.close()
    }
  }
}

function whole(flag: string, text: string | undefined, min: number): number | undefined {
  return parseNumber('run', flag, text, { min, max: 100_000 })
}
