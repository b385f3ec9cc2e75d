import { resolve } from 'node:path'
import type * as z from 'zod'
import { allowModules } from '../../lib/process/load-module.ts'
import { Label } from '../../model/sample.ts'
import { FinishReason, Exactness, Steering } from '../../model/turn.ts'
import { Weighting, type BuildOptions } from '../../trajectory/build-session.ts'
import type { Builder } from '../../trajectory/builders/builder.ts'
import { builders } from '../../trajectory/builders/index.ts'
import { loadBuilder } from '../../trajectory/builders/load-builder.ts'
import { CallFilter } from '../../trajectory/select-calls.ts'
import { option, parseNumber, toggle, usageError, type FlagValues } from '../command.ts'
import { requestReader } from '../../compose/read-request.ts'
import { loadSessionReaders } from '../../compose/session-readers.ts'
import { TOKENIZER_FLAG } from './resolve-session.ts'

/** Flags of all commands that build samples: how calls become traces, and which calls are trained. */
export const buildFlags = {
  builder: option('NAME', 'Builder that turns calls into traces', {
    choices: builders.kinds,
    default: 'prefix_merging',
  }),
  splice: toggle('prefix_merging: merge as NVIDIA Polar does, for comparison only'),
  'builder-module': option('FILE', 'Instead of --builder: a JavaScript or TypeScript module that exports "builder"'),
  labels: option('A,B', 'Train only calls with these labels; "all" trains every label', { default: 'main,subagent' }),
  grades: option('A,B', 'Train only calls whose tokens have this exactness', { default: 'exact' }),
  'finish-reasons': option('A,B', 'Train only calls with these finish reasons (default: all)'),
  'max-tokens': option('N', 'Train only calls whose prompt and answer have at most this many tokens'),
  'exclude-parser-failures': toggle('Exclude calls whose tool calls could not be parsed'),
  'allow-steered': option(
    'A,B',
    `Also train calls whose request steered the sampling: ${Steering.options.join(', ')}, or "all"`,
  ),
  weights: option('HOW', 'How the weight of a session is divided among its samples', {
    choices: Weighting.options,
    default: 'tokens',
  }),
  tokenizer: TOKENIZER_FLAG,
} as const

export type BuildFlags = FlagValues<typeof buildFlags>

/** `command` is the name of the command, for messages. Throws `config.invalid` for invalid values. */
export async function toBuildOptions(command: string, flags: BuildFlags): Promise<BuildOptions> {
  return {
    builder: await toBuilder(command, flags),
    filter: CallFilter.parse({
      labels: parseList(command, 'labels', Label, flags.labels, { all: true }),
      grades: parseList(command, 'grades', Exactness, flags.grades),
      finishReasons: parseList(command, 'finish-reasons', FinishReason, flags['finish-reasons']?.replaceAll('_', '-')),
      maxTokens: parseNumber(command, 'max-tokens', flags['max-tokens'], { min: 1, max: 2 ** 31 - 1 }),
      parserFailures: flags['exclude-parser-failures'] ? 'exclude' : 'keep',
      allowSteered: parseList(command, 'allow-steered', Steering, flags['allow-steered'], { all: true }),
    }),
    weighting: Weighting.parse(flags.weights),
    reader: requestReader,
    forSession: await loadSessionReaders(flags.tokenizer),
  }
}

async function toBuilder(command: string, flags: BuildFlags): Promise<Builder> {
  const path = flags['builder-module']
  if (path !== undefined) {
    if (flags.splice) throw usageError(command, '--splice is for --builder prefix_merging, not for a module')
    // The user of this program can run any code, so this module, and no other, is allowed.
    return loadBuilder(resolve(path), { allowed: await allowModules([resolve(path)]) })
  }
  if (flags.splice && flags.builder !== 'prefix_merging') {
    throw usageError(command, `--splice is for --builder prefix_merging, not ${flags.builder}`)
  }
  const config = { kind: flags.builder, ...(flags.splice ? { splice: true } : {}) }
  return builders.create(builders.config.parse(config), {})
}

/** Parses a list; if `all` is set, "all" stands for every value. */
function parseList<T extends string>(
  command: string,
  flag: string,
  schema: z.ZodType<T> & { options: T[] },
  text: string | undefined,
  { all = false } = {},
): T[] | undefined {
  if (all && text?.trim() === 'all') return [...schema.options]
  return text?.split(',').map((word) => {
    const parsed = schema.safeParse(word.trim())
    if (parsed.success) return parsed.data
    throw usageError(command, `--${flag} takes ${schema.options.join(', ')}, separated by commas, not "${word.trim()}"`)
  })
}
