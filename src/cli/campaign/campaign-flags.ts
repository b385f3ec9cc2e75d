import { createHash } from 'node:crypto'
import { join } from 'node:path'
import type { TaskRequest } from '../../model/task.ts'
import type { Exporter } from '../../trajectory/exporters/exporter.ts'
import { exporters } from '../../trajectory/exporters/index.ts'
import { option, parseNumber, toggle, usageError, type FlagValues } from '../command.ts'
import { buildFlags } from '../input/build-options.ts'
import { TRAINER_FLAGS } from '../input/config-flags.ts'
import { loadExporter } from '../input/load-exporter.ts'
import { LOCAL_NODE_FLAGS } from '../input/local-node.ts'
import { TASK_FLAGS } from '../input/task-sources.ts'
import { AcceptRules, EndingKind } from './accept-rules.ts'
import type { CampaignBudget } from './run-campaign.ts'

const NAME = 'campaign'

/** Columns of one type, which `datasets` and Arrow need. */
const DEFAULT_FORMAT = 'openai_sft:content=text,tools=json'

export const CAMPAIGN_FLAGS = {
  accept: option('K', 'Accepted trajectories that each task should have', { default: '1' }),
  attempts: option('N', 'Limit of sessions of each task whose end the agent caused (default: 4 times --accept)'),
  refills: option('N', 'Limit of sessions of each task that failed because of infrastructure (default: --attempts)'),
  'min-reward': option('X', 'Accept rewards of at least X; "none" also accepts sessions without a reward', {
    default: '1',
  }),
  endings: option('A,B', `Accept these endings of the agent: ${EndingKind.options.join(', ')}`, {
    default: 'completed',
  }),
  'min-tool-calls': option('N', 'Accept trajectories with at least N trained tool calls', { default: '0' }),
  'max-turns': option('N', 'Accept sessions with at most N model calls'),
  'budget-sessions': option('N', 'Start at most N sessions'),
  'budget-tokens': option('N', 'Start no session after N sampled tokens'),
  'budget-minutes': option('N', 'Start no session after N minutes'),
  'held-out': option('SHARE', 'Share of the tasks whose repositories form the test split, from 0 to 0.9', {
    default: '0.1',
  }),
  seed: option('N', 'Seed of the split', { default: '0' }),
  format: option(
    'NAME[:KEY=VALUE,…]',
    `Output format with its options: ${exporters.kinds.join(', ')}, or a module; may be repeated (default: ${DEFAULT_FORMAT})`,
    { multiple: true },
  ),
  out: option('DIR', 'Folder of the campaign; the same folder continues it', { default: join('.polar', 'campaign') }),
  server: option('URL', 'Run the sessions on this server, instead of on this machine'),
  'token-file': TRAINER_FLAGS['token-file'],
  dir: TRAINER_FLAGS.dir,
  ...TASK_FLAGS,
  ...LOCAL_NODE_FLAGS,
  ...buildFlags,
  json: toggle('Print the report as JSON on standard output'),
} as const

export type CampaignFlags = FlagValues<typeof CAMPAIGN_FLAGS>

export interface CampaignSettings {
  accept: number
  attempts: number
  refills: number
  rules: AcceptRules
  budget: CampaignBudget
  split: { share: number; seed: number }
  exporters: readonly Exporter[]
  /** Whether a format contains token ids. */
  exportsTokens: boolean
}

/** Throws `config.invalid` for invalid values. */
export async function toCampaignSettings(flags: CampaignFlags): Promise<CampaignSettings> {
  const accept = whole('accept', flags.accept, 1)!
  const attempts = whole('attempts', flags.attempts, accept) ?? 4 * accept
  const minutes = whole('budget-minutes', flags['budget-minutes'], 1)
  const formats = flags.format.length === 0 ? [DEFAULT_FORMAT] : flags.format
  const chosen = await Promise.all(
    formats.map((text) => {
      const [, name = '', settings = ''] = /^([^:]*):?(.*)$/s.exec(text) ?? []
      return loadExporter(NAME, name, settings)
    }),
  )
  const names = chosen.map(({ name }) => name)
  if (new Set(names).size < names.length) throw usageError(NAME, '--format names the same format twice')
  return {
    accept,
    attempts,
    refills: whole('refills', flags.refills, 0) ?? attempts,
    rules: toRules(flags),
    budget: {
      sessions: whole('budget-sessions', flags['budget-sessions'], 1),
      tokens: whole('budget-tokens', flags['budget-tokens'], 1),
      ms: minutes === undefined ? undefined : minutes * 60_000,
    },
    split: {
      share: decimal('held-out', flags['held-out'], { min: 0, max: 0.9 }),
      seed: whole('seed', flags.seed, 0)!,
    },
    exporters: chosen,
    exportsTokens: chosen.some(({ isTextOnly }) => isTextOnly !== true),
  }
}

function toRules(flags: CampaignFlags): AcceptRules {
  const endings = flags.endings.split(',').map((word) => {
    const parsed = EndingKind.safeParse(word.trim())
    if (parsed.success) return parsed.data
    throw usageError(NAME, `--endings takes ${EndingKind.options.join(', ')}, separated by commas, not "${word}"`)
  })
  const range = { min: -1e9, max: 1e9 }
  return AcceptRules.parse({
    minReward: flags['min-reward'] === 'none' ? null : decimal('min-reward', flags['min-reward'], range),
    endings,
    minToolCalls: whole('min-tool-calls', flags['min-tool-calls'], 0),
    maxTurns: whole('max-turns', flags['max-turns'], 1) ?? null,
  })
}

/**
 * Hashes everything that decides whether a session is accepted: tasks, rules, and the settings of the builder. Budgets, the
 * number of accepted trajectories and the split may change when a campaign continues.
 */
export function fingerprintOf(
  { rules, exportsTokens }: CampaignSettings,
  flags: CampaignFlags,
  tasks: readonly TaskRequest[],
): string {
  const build = (Object.keys(buildFlags) as (keyof typeof buildFlags)[]).map((key) => [key, flags[key]])
  const deciding = { rules, exportsTokens, build, tasks }
  return createHash('sha256').update(JSON.stringify(deciding)).digest('hex').slice(0, 32)
}

function whole(flag: string, text: string | undefined, min: number): number | undefined {
  return parseNumber(NAME, flag, text, { min, max: 1_000_000_000 })
}

function decimal(flag: string, text: string, { min, max }: { min: number; max: number }): number {
  const value = Number(text)
  if (text.trim() !== '' && value >= min && value <= max) return value
  throw usageError(NAME, `--${flag} must be a number from ${min} to ${max}, not "${text}"`)
}
