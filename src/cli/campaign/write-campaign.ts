import { rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { TaskRequest } from '../../model/task.ts'
import type { SessionReader } from '../../store/store.ts'
import type { BuildOptions } from '../../trajectory/build-session.ts'
import { groupOf } from '../input/choose-run.ts'
import type { CampaignSettings } from './campaign-flags.ts'
import type { Decision } from './campaign-journal.ts'
import { toReport, type CampaignReport } from './campaign-report.ts'
import { exportAccepted, type Accepted } from './export-accepted.ts'
import { renderChart } from './report-chart.ts'
import { renderMarkdown, stopSentence } from './report-markdown.ts'
import { repositoryOf, splitRepositories } from './repositories.ts'
import type { StopReason } from './run-campaign.ts'
import type { SecretScrubber } from './secrets.ts'

export interface FinishedCampaign {
  dir: string
  runId: string
  stopped: StopReason
  elapsedMs: number
  tasks: readonly TaskRequest[]
  decisions: readonly Decision[]
  settings: CampaignSettings
  build: BuildOptions
  reader: Pick<SessionReader, 'load'>
  scrubber: SecretScrubber
}

/** Writes the data and the report of a campaign. The same sessions give the same data files, whatever order they ended in. */
export async function writeCampaign(campaign: FinishedCampaign): Promise<{ report: CampaignReport; summary: string }> {
  const { dir, runId, stopped, elapsedMs, tasks, decisions, settings } = campaign
  const repositories = new Map(tasks.map((task) => [task.task_id, repositoryOf(task)]))
  const splits = splitRepositories([...repositories.values()], settings.split)
  const order = new Map(tasks.map(({ task_id: id }, index) => [id, index]))
  const accepted = decisions
    .filter(({ verdict }) => verdict === 'accepted')
    .toSorted((a, b) => order.get(a.taskId)! - order.get(b.taskId)! || (a.sessionId < b.sessionId ? -1 : 1))
    .map((decision): Accepted => {
      const repository = repositories.get(decision.taskId)!
      return {
        session_id: decision.sessionId,
        task_id: decision.taskId,
        repository,
        split: splits.get(repository)!,
        reward: decision.reward ?? null,
        digest: decision.digest ?? '',
        turns: decision.turns,
      }
    })
  const scores = new Map(
    accepted.map(({ session_id: id, task_id: taskId, reward }) => [
      id,
      { session_id: id, group_id: groupOf(runId, taskId), outcome_reward: reward, metadata: {} },
    ]),
  )
  const { build, reader, scrubber } = campaign
  const files = await exportAccepted({ dir, reader, build, exporters: settings.exporters, scrubber, accepted, scores })
  const { accept } = settings
  const report = toReport({ runId, stopped, accept, tasks, decisions, splits, files, elapsedMs })
  await replaceFile(join(dir, 'report.svg'), renderChart(report))
  await replaceFile(join(dir, 'report.md'), renderMarkdown(report, 'report.svg'))
  await replaceFile(join(dir, 'report.json'), `${JSON.stringify(report, undefined, 2)}\n`)
  return { report, summary: summaryOf(report, dir) }
}

async function replaceFile(path: string, text: string): Promise<void> {
  await writeFile(`${path}.partial`, text)
  await rename(`${path}.partial`, path)
}

function summaryOf(report: CampaignReport, dir: string): string {
  const { accepted, attempts, tasks_complete: complete, tasks, files } = report
  return [
    `\n${accepted} accepted of ${attempts} attempts; ${complete} of ${tasks} tasks are complete: ${stopSentence(report)}.\n\n`,
    ...files.map(({ path, sessions, rows }) => `${join(dir, path)}  ${sessions} sessions, ${rows} rows\n`),
    `${join(dir, 'report.md')}\n`,
  ].join('')
}
