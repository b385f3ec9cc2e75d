import { toVisibleLine } from '../../lib/visible-text.ts'
import type { CampaignReport, RepositoryYield } from './campaign-report.ts'
import type { StopReason } from './run-campaign.ts'

const STOPPED: Readonly<Record<StopReason, string>> = {
  complete: 'every task has its accepted trajectories',
  attempts: 'the other tasks have used up their attempts',
  sessions: 'the session budget is used up',
  tokens: 'the token budget is used up',
  time: 'the time budget is used up',
  interrupted: 'it was interrupted',
}

export function stopSentence({ stopped }: Pick<CampaignReport, 'stopped'>): string {
  return STOPPED[stopped]
}

/** Renders the report for people. `chart` is the file name of its image. */
export function renderMarkdown(report: CampaignReport, chart: string): string {
  const { rejected, failed, files, tokens } = report
  return [
    `# Campaign ${report.run_id}`,
    `${report.accepted} trajectories were accepted of ${report.attempts} attempts (${percent(report.acceptance)}). ` +
      `${report.tasks_complete} of ${report.tasks} tasks have ${report.accept} or more. ` +
      `The campaign ended because ${stopSentence(report)}.`,
    `![Attempts and accepted trajectories by repository](${chart})`,
    table(
      ['Fact', 'Value'],
      [
        ['turns of an accepted trajectory', `mean ${number(report.mean_turns)}, at most ${number(report.max_turns)}`],
        ['sampled tokens', String(tokens.sampled)],
        ['trained tokens of accepted trajectories', String(tokens.accepted)],
        ['time of the campaign', `${report.elapsed_seconds} s`],
        ['time of all agents', `${report.agent_seconds} s`],
        ['secrets in accepted trajectories', String(report.secrets)],
      ],
    ),
    '## Repositories',
    table(
      ['Repository', 'Split', 'Tasks', 'Attempts', 'Accepted', 'Share', 'Turns', 'Trained tokens', 'Seconds'],
      report.repositories.map(toRow),
    ),
    '## Not accepted',
    table(
      ['Reason', 'Sessions'],
      [
        ...Object.entries(rejected).map(([reason, count]) => [`rejected: ${reason}`, String(count)]),
        ...Object.entries(failed).map(([code, count]) => [`failed: ${code}`, String(count)]),
      ],
    ),
    '## Files',
    table(
      ['File', 'Format', 'Split', 'Sessions', 'Rows', 'Bytes'],
      files.map(({ path, format, split, sessions, rows, bytes }) => [
        path,
        format,
        split,
        ...[sessions, rows, bytes].map(String),
      ]),
    ),
    '',
  ].join('\n\n')
}

function toRow(entry: RepositoryYield): string[] {
  return [
    entry.repository,
    entry.split,
    String(entry.tasks),
    String(entry.attempts),
    String(entry.accepted),
    percent(entry.acceptance),
    number(entry.mean_turns),
    number(entry.mean_trained_tokens),
    number(entry.mean_seconds),
  ]
}

function table(head: readonly string[], rows: readonly (readonly string[])[]): string {
  const line = (cells: readonly string[]): string =>
    `| ${cells.map((text) => toVisibleLine(text).replaceAll('|', String.raw`\|`)).join(' | ')} |`
  return [line(head), line(head.map(() => '---')), ...rows.map(line)].join('\n')
}

function percent(share: number | null): string {
  return share === null ? '-' : `${(100 * share).toFixed(1)} %`
}

function number(value: number | null): string {
  return value === null ? '-' : String(Math.round(value * 10) / 10)
}
