import { join, resolve } from 'node:path'
import { randomIds } from '../../lib/random-ids.ts'
import { toVisibleLine } from '../../lib/visible-text.ts'
import type { TaskRequest } from '../../model/task.ts'
import { SessionFolder, sessionsFolder } from '../../node/session/session-folder.ts'
import { CAMPAIGN_FLAGS, fingerprintOf, toCampaignSettings, type CampaignSettings } from '../campaign/campaign-flags.ts'
import { openHost, type CampaignHost } from '../campaign/campaign-host.ts'
import { CampaignJournal, type Decision } from '../campaign/campaign-journal.ts'
import { CampaignPlan } from '../campaign/campaign-plan.ts'
import { CampaignProgress } from '../campaign/campaign-progress.ts'
import { judgeSession } from '../campaign/judge-session.ts'
import { runCampaign, type StopReason } from '../campaign/run-campaign.ts'
import { createSecretScrubber, secretValues } from '../campaign/secrets.ts'
import { writeCampaign } from '../campaign/write-campaign.ts'
import { defineCommand, EXIT, usageError, type ExitCode } from '../command.ts'
import { toBuildOptions } from '../input/build-options.ts'
import { toTaskSources } from '../input/task-sources.ts'
import { listenForInterrupt } from '../stop-signals.ts'
import { print, printError, printJson } from '../views/print.ts'

const NAME = 'campaign'

export const command = defineCommand({
  name: NAME,
  description:
    'Collect training data offline: run the tasks of a dataset until each has enough accepted trajectories or a budget ends.',
  words: { name: 'FILE…', description: 'Task files: YAML, JSON or JSONL' },
  flags: CAMPAIGN_FLAGS,
  examples: [
    'polar campaign tasks.jsonl --accept 2 --budget-sessions 100',
    'polar campaign --swe rows.jsonl --harness pi --runtime docker --engine-url http://localhost:8000',
    'polar campaign --harbor tasks/ --min-tool-calls 1 --max-turns 60 --budget-minutes 120',
    'polar campaign tasks.jsonl --server http://localhost:8080',
  ],
  async run({ flags, words }): Promise<ExitCode> {
    const dir = resolve(flags.out)
    const settings = await toCampaignSettings(flags)
    const build = await toBuildOptions(NAME, flags)
    const sources = await toTaskSources(NAME, words, flags)
    using interrupted = listenForInterrupt()
    const { signal } = interrupted
    await using host = await openHost(flags, { dir, sources, signal })
    if (host === undefined) return EXIT.interrupted
    const tasks = (await host.readTasks()).map((task) => ({ ...task, num_samples: 1 }))
    assertGraded(tasks, settings)
    await using journal = await CampaignJournal.open(join(dir, 'campaign.jsonl'), {
      fingerprint: fingerprintOf(settings, flags, tasks),
      newId: () => randomIds(Date.now).next('run'),
      now: Date.now(),
    })
    const begun = Date.now()
    const scrubber = createSecretScrubber(secretsOf(tasks, flags['engine-key']))
    const { reader } = host
    const decisions = [...journal.decisions]
    const stopped = await collect({ settings, tasks, journal, host, dir, signal }, decisions, (plan) => ({
      load: (id) => reader.load(id),
      build,
      rules: settings.rules,
      scrubber,
      exportsTokens: settings.exportsTokens,
      hasDigest: (taskId, digest) => plan.hasDigest(taskId, digest),
    }))
    if (stopped === 'interrupted') {
      printError('Interrupted. The same command continues the campaign.\n')
      return EXIT.interrupted
    }
    const elapsedMs = journal.elapsedMs + Date.now() - begun
    const { runId } = journal
    const written = await writeCampaign({
      dir,
      runId,
      stopped,
      elapsedMs,
      tasks,
      decisions,
      settings,
      build,
      reader,
      scrubber,
    })
    if (flags.json) printJson(written.report, 2)
    else print(written.summary)
    const isExported = written.report.files.every(({ failed }) => failed.length === 0)
    return written.report.accepted > 0 && isExported ? EXIT.done : EXIT.failed
  },
})

/** Throws `config.invalid` for tasks whose sessions could never be accepted. */
function assertGraded(tasks: readonly TaskRequest[], { rules }: CampaignSettings): void {
  const ungraded = tasks.find(({ evaluator }) => evaluator == null)
  if (ungraded === undefined || rules.minReward === null) return
  const advice = 'add an evaluator, or accept sessions without a reward with --min-reward none'
  throw usageError(NAME, `task ${ungraded.task_id} has no evaluator, so its sessions have no reward; ${advice}`)
}

interface Collecting {
  settings: CampaignSettings
  tasks: readonly TaskRequest[]
  journal: CampaignJournal
  host: CampaignHost
  dir: string
  signal: AbortSignal
}

/** Runs the campaign with its view. Appends the decisions of this process to `decisions`. */
async function collect(
  { settings, tasks, journal, host, dir, signal }: Collecting,
  decisions: Decision[],
  depsOf: (plan: CampaignPlan) => Parameters<typeof judgeSession>[1],
): Promise<StopReason> {
  const { runId } = journal
  const plan = new CampaignPlan({ ...settings, tasks, runId })
  const folder = sessionsFolder(dir)
  for (const { id } of await SessionFolder.all(folder)) plan.addStarted(id)
  const decided = new Set(decisions.map(({ sessionId }) => sessionId))
  const undecided = (await SessionFolder.outcomes(folder))
    .filter((outcome) => outcome.runId === runId && !decided.has(outcome.sessionId))
    .toSorted((a, b) => a.endedAt - b.endedAt || (a.sessionId < b.sessionId ? -1 : 1))
  const continued = await host.continueRun(runId)
  for (const { taskId } of continued) plan.addRunning(taskId)
  const deps = depsOf(plan)
  const progress = new CampaignProgress(plan, () => performance.now())
  using view = host.createView(() => progress.read())
  if (decisions.length > 0) {
    view.print(
      `Continues the campaign: ${decisions.length} sessions decided, ${undecided.length} ended, ${continued.length} run again.\n`,
    )
  }
  return await runCampaign({
    plan,
    journal,
    runId,
    submit: host.submit,
    resumed: continued.map(({ session }) => session),
    undecided,
    budget: settings.budget,
    width: host.width,
    judge: (outcome) => judgeSession(outcome, deps),
    now: Date.now,
    signal,
    onDecision: (decision) => {
      decisions.push(decision)
      progress.add()
      view.print(lineOf(decision))
    },
  })
}

function lineOf({ verdict, reason, taskId, sessionId, reward, turns, tokens }: Decision): string {
  const why = reason === undefined ? '' : ` (${reason})`
  const facts = `${reward === undefined ? 'no reward' : `reward ${reward}`}, ${turns} turns, ${tokens.trained} tokens to train`
  return `${`${verdict}${why}`.padEnd(22)}  ${toVisibleLine(taskId)}  ${sessionId}  ${facts}\n`
}

/** Values that must not be in the data: of this process, and of the environments of the tasks. */
function secretsOf(tasks: readonly TaskRequest[], engineKey: string | undefined): string[] {
  const environments = tasks.flatMap(({ runtime, agent, evaluator }) => [
    runtime?.env ?? {},
    agent.env,
    evaluator?.env ?? {},
  ])
  return secretValues(process.env, { ENGINE_KEY: engineKey }, ...environments)
}
