import { parseArgs } from 'node:util'
import { RolloutError } from '../model/failure.ts'
import { print, printError } from './views/print.ts'

/** Exit codes of every command. */
export const EXIT = { done: 0, failed: 1, usage: 2, unreachable: 3, interrupted: 130 } as const
export type ExitCode = (typeof EXIT)[keyof typeof EXIT]

interface AnyFlag {
  description: string
  /** Former spelling: accepted until the next release with a note on standard error, and not listed in the help. */
  formerly?: string
}

export interface StringFlag extends AnyFlag {
  type: 'string'
  /** Placeholder of the value in the help. */
  hint: string
  default?: string
  /** Accepted values; absent: any text. */
  choices?: readonly string[]
  /** The flag may be repeated; its value is the list of all values. */
  multiple?: true
}

export interface BooleanFlag extends AnyFlag {
  type: 'boolean'
}

type Flags = Readonly<Record<string, StringFlag | BooleanFlag>>

type OptionSettings = Omit<StringFlag, 'type' | 'hint' | 'description'>

/** A flag with a value; `hint` is the placeholder of the value in the help. */
export function option<const S extends OptionSettings = object>(
  hint: string,
  description: string,
  settings?: S,
): Pick<StringFlag, 'type' | 'hint' | 'description'> & S {
  return { type: 'string', hint, description, ...settings } as StringFlag & S
}

/** A flag without a value. */
export function toggle(description: string): BooleanFlag {
  return { type: 'boolean', description }
}

type FlagValue<F extends StringFlag | BooleanFlag> = F extends BooleanFlag
  ? boolean
  : F extends { multiple: true }
    ? string[]
    : F extends { default: string }
      ? string
      : string | undefined

/** Values of flags, after parsing. */
export type FlagValues<F extends Flags> = { [K in keyof F]: FlagValue<F[K]> }

interface CommandInput<F extends Flags> {
  flags: FlagValues<F>
  /** The positional argument, its default, or ''. */
  subject: string
  /** All positional arguments. */
  words: string[]
  /** The arguments after `--`, unparsed. */
  rest: string[]
}

interface CommandDefinition<F extends Flags> {
  name: string
  description: string
  /** The only positional argument; absent: the command accepts none. */
  subject?: { name: string; description: string; default?: string }
  /** Instead of `subject`: the command accepts any number of positional arguments. */
  words?: { name: string; description: string }
  flags: F
  /** Describes the arguments after `--` in the help; absent: the command accepts none. */
  rest?: string
  /** Complete command lines that work as printed. */
  examples: readonly string[]
  run(input: CommandInput<F>): Promise<ExitCode>
}

export interface Command {
  readonly name: string
  /** Throws RolloutError `config.invalid` for arguments that the command does not accept. */
  execute(words: readonly string[]): Promise<ExitCode>
}

export function defineCommand<const F extends Flags>(definition: CommandDefinition<F>): Command {
  return {
    name: definition.name,
    async execute(words) {
      const split = words.indexOf('--')
      const own = split === -1 ? words : words.slice(0, split)
      const rest = split === -1 ? [] : words.slice(split + 1)
      if (own.includes('--help') || own.includes('-h')) {
        print(formatHelp(definition))
        return EXIT.done
      }
      if (rest.length > 0 && definition.rest === undefined)
        throw usageError(definition.name, 'no arguments are accepted after --')
      return definition.run({ ...parseWords(definition, own), rest })
    },
  }
}

export function usageError(name: string, problem: string): RolloutError {
  return new RolloutError('config.invalid', `polar ${name}: ${problem}. Try: polar ${name} --help`)
}

/** For a word that is not an action of the command, or for none. */
export function actionError(name: string, action: string | undefined, actions: string): RolloutError {
  return usageError(name, action === undefined ? `name an action: ${actions}` : `unknown action "${action}"`)
}

type Limits = { min: number; max: number }

/** Parses the value of a numeric flag; undefined for an absent flag. Throws `config.invalid`. */
export function parseNumber(name: string, flag: string, text: string, limits: Limits): number
export function parseNumber(name: string, flag: string, text: string | undefined, limits: Limits): number | undefined
export function parseNumber(name: string, flag: string, text: string | undefined, limits: Limits): number | undefined {
  if (text === undefined) return undefined
  const value = Number(text)
  if (text.trim() === '' || !Number.isInteger(value) || value < limits.min || value > limits.max) {
    throw usageError(name, `--${flag} must be a whole number from ${limits.min} to ${limits.max}, not "${text}"`)
  }
  return value
}

function parseWords<F extends Flags>(
  definition: CommandDefinition<F>,
  own: readonly string[],
): Omit<CommandInput<F>, 'rest'> {
  const { name, flags, subject, words } = definition
  const { values, positionals } = parseStrictly(name, flags, respell(flags, own))
  const [word] = positionals
  const unexpected = words === undefined ? positionals[subject === undefined ? 0 : 1] : undefined
  if (unexpected !== undefined) throw usageError(name, `unexpected argument "${unexpected}"`)
  for (const [flag, { choices }] of Object.entries(flags as Record<string, Partial<StringFlag>>)) {
    const value = values[flag]
    if (choices !== undefined && typeof value === 'string' && !choices.includes(value)) {
      throw usageError(name, `--${flag} must be one of ${choices.join(', ')}, not "${value}"`)
    }
  }
  return {
    flags: values as CommandInput<F>['flags'],
    subject: word ?? subject?.default ?? '',
    words: positionals,
  }
}

/** Replaces former spellings of flags, and prints a note for each. */
function respell(flags: Flags, own: readonly string[]): string[] {
  return own.map((word) => {
    const [, old, value = ''] = /^--([^=]+)(=.*)?$/s.exec(word) ?? []
    const [flag] = Object.entries(flags).find(([, { formerly }]) => old !== undefined && formerly === old) ?? []
    if (flag === undefined) return word
    printError(`--${old} is now --${flag}; the old spelling works until the next release.\n`)
    return `--${flag}${value}`
  })
}

function parseStrictly(
  name: string,
  flags: Flags,
  own: readonly string[],
): { values: Record<string, unknown>; positionals: string[] } {
  const options = Object.fromEntries(
    Object.entries(flags).map(([flag, spec]) => {
      if (spec.type === 'boolean') return [flag, { type: spec.type, default: false }]
      if (spec.multiple) return [flag, { type: spec.type, multiple: true, default: [] }]
      return [flag, { type: spec.type, default: spec.default }]
    }),
  )
  try {
    return parseArgs({ args: [...own], options, allowPositionals: true, strict: true })
  } catch (error) {
    const message = error instanceof Error ? error.message : String(error)
    throw usageError(name, message.replace(/\. .*$/s, '').replace(/\.$/, ''))
  }
}

function formatHelp(definition: CommandDefinition<Flags>): string {
  const { name, description, subject, words, flags, rest, examples } = definition
  const rows = Object.entries(flags).map(([flag, spec]): [term: string, text: string] => {
    const value = spec.type === 'string' ? ` ${spec.choices?.join('|') ?? spec.hint}` : ''
    const fallback = spec.type === 'string' && spec.default !== undefined ? ` (default: ${spec.default})` : ''
    return [`--${flag}${value}`, `${spec.description}${fallback}`]
  })
  const fallback = subject?.default === undefined ? '' : ` (default: ${subject.default})`
  if (subject) rows.unshift([subject.name, `${subject.description}${fallback}`])
  if (words) rows.unshift([words.name, words.description])
  const width = Math.max(...rows.map(([term]) => term.length))
  const usage = `polar ${name} [flags]${subject ? ` [${subject.name}]` : ''}${words ? ` ${words.name}` : ''}${rest ? ' -- command…' : ''}`
  return [
    description,
    '',
    `Usage: ${usage}`,
    '',
    ...rows.map(([term, text]) => `  ${term.padEnd(width)}  ${text}`),
    ...(rest ? ['', `After --: ${rest}.`] : []),
    '',
    'Examples:',
    ...examples.map((line) => `  ${line}`),
    '',
  ].join('\n')
}
