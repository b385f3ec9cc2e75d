import type { TaskRequest } from '../../model/task.ts'
import type { Decision } from './campaign-journal.ts'
import type { DataFile } from './export-accepted.ts'
import { repositoryOf, type Split } from './repositories.ts'
import type { StopReason } from './run-campaign.ts'

export interface ReportInput {
  runId: string
  stopped: StopReason
  /** Accepted trajectories that each task should have. */
  accept: number
  tasks: readonly TaskRequest[]
  decisions: readonly Decision[]
  splits: ReadonlyMap<string, Split>
  files: readonly DataFile[]
  elapsedMs: number
}

/** Counts and means of a set of sessions. Means are of accepted sessions; null without any. */
interface Yield {
  attempts: number
  accepted: number
  /** Accepted sessions per attempt; null without attempts. */
  acceptance: number | null
  mean_turns: number | null
  mean_trained_tokens: number | null
  mean_seconds: number | null
}

export interface RepositoryYield extends Yield {
  repository: string
  split: Split
  tasks: number
}

export interface CampaignReport extends Yield {
  schema_version: 1
  run_id: string
  stopped: StopReason
  tasks: number
  /** Tasks with as many accepted trajectories as they should have. */
  tasks_complete: number
  accept: number
  /** Number of rejected sessions by reason. */
  rejected: Record<string, number>
  /** Number of sessions that failed for another reason than the agent, by failure code. They are not attempts. */
  failed: Record<string, number>
  max_turns: number | null
  tokens: { sampled: number; trained: number; accepted: number }
  /** Secrets in accepted sessions, which text formats do not contain. */
  secrets: number
  elapsed_seconds: number
  agent_seconds: number
  repositories: RepositoryYield[]
  files: DataFile[]
}

export function toReport(input: ReportInput): CampaignReport {
  const { runId, stopped, accept, tasks, decisions, splits, files, elapsedMs } = input
  const repositories = new Map(tasks.map((task) => [task.task_id, repositoryOf(task)]))
  const accepted = decisions.filter(({ verdict }) => verdict === 'accepted')
  const perTask = Map.groupBy(accepted, ({ taskId }) => taskId)
  const perRepository = Map.groupBy(decisions, ({ taskId }) => repositories.get(taskId) ?? taskId)
  const taskCounts = Map.groupBy(repositories.values(), (name) => name)
  const sum = (list: readonly Decision[], pick: (decision: Decision) => number): number =>
    list.reduce((total, decision) => total + pick(decision), 0)
  return {
    schema_version: 1,
    run_id: runId,
    stopped,
    tasks: tasks.length,
    tasks_complete: [...perTask.values()].filter((list) => list.length >= accept).length,
    accept,
    ...toYield(decisions),
    rejected: countReasons(decisions, 'rejected'),
    failed: countReasons(decisions, 'failed'),
    max_turns: accepted.length === 0 ? null : Math.max(...accepted.map(({ turns }) => turns)),
    tokens: {
      sampled: sum(decisions, ({ tokens }) => tokens.sampled),
      trained: sum(decisions, ({ tokens }) => tokens.trained),
      accepted: sum(accepted, ({ tokens }) => tokens.trained),
    },
    secrets: sum(accepted, ({ secrets }) => secrets ?? 0),
    elapsed_seconds: Math.round(elapsedMs / 100) / 10,
    agent_seconds: Math.round(sum(decisions, ({ runMs }) => runMs ?? 0) / 100) / 10,
    repositories: [...taskCounts]
      .map(([repository, list]) => ({
        repository,
        split: splits.get(repository) ?? 'train',
        tasks: list.length,
        ...toYield(perRepository.get(repository) ?? []),
      }))
      .toSorted((a, b) => b.attempts - a.attempts || (a.repository < b.repository ? -1 : 1)),
    files: [...files],
  }
}

function toYield(decisions: readonly Decision[]): Yield {
  const attempts = decisions.filter(({ verdict }) => verdict !== 'failed')
  const accepted = decisions.filter(({ verdict }) => verdict === 'accepted')
  return {
    attempts: attempts.length,
    accepted: accepted.length,
    acceptance: attempts.length === 0 ? null : accepted.length / attempts.length,
    mean_turns: mean(accepted.map(({ turns }) => turns)),
    mean_trained_tokens: mean(accepted.map(({ tokens }) => tokens.trained)),
    mean_seconds: mean(accepted.flatMap(({ runMs }) => (runMs === undefined ? [] : [runMs / 1000]))),
  }
}

function mean(numbers: readonly number[]): number | null {
  return numbers.length === 0 ? null : numbers.reduce((sum, number) => sum + number, 0) / numbers.length
}

function countReasons(decisions: readonly Decision[], verdict: Decision['verdict']): Record<string, number> {
  const counts = Map.groupBy(
    decisions.filter((decision) => decision.verdict === verdict),
    ({ reason }) => reason ?? 'unknown',
  )
  const sorted = [...counts].toSorted(([a], [b]) => (a < b ? -1 : 1))
  return Object.fromEntries(sorted.map(([reason, list]) => [reason, list.length]))
}
