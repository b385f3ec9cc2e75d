import { readFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join, resolve } from 'node:path'
import { text } from 'node:stream/consumers'
import { orInvalid } from '../../config/or-invalid.ts'
import type { ContinuationMode } from '../../gateway/sessions/sessions.ts'
import { allowModules } from '../../lib/process/load-module.ts'
import { randomIds } from '../../lib/random-ids.ts'
import { toVisibleLine } from '../../lib/visible-text.ts'
import { RolloutError } from '../../model/failure.ts'
import { createCallLogReader } from '../../store/call-log/reader.ts'
import { createCallLogStore } from '../../store/call-log/store.ts'
import { endOf, type Harness, type PackagedHarness } from '../../node/harness/presets/harness.ts'
import { findHarness, type FoundHarness } from '../../node/harness/find-harness.ts'
import { NO_OPTIONS, type AgentOptions } from '../../node/harness/harness-launch.ts'
import { isPackaged, loadHarness } from '../../node/harness/load-harness.ts'
import { presets } from '../../node/harness/presets/index.ts'
import {
  defineCommand,
  EXIT,
  option,
  parseNumber,
  toggle,
  usageError,
  type ExitCode,
  type FlagValues,
} from '../command.ts'
import { listenForInterrupt } from '../stop-signals.ts'
import { createLogger } from '../../compose/create-logger.ts'
import { HARNESS_DIR_HELP, harnessPlaces, presetNamed } from '../../compose/harness-folders.ts'
import { loadAgent } from '../input/load-agent.ts'
import { loadQuirks } from '../../compose/load-quirks.ts'
import {
  CONTINUATION_FLAG,
  DURABILITY_FLAG,
  ENGINE_FLAGS,
  ENGINE_KEY_FLAG,
  QUIRKS_FLAG,
  toEngineChoice,
} from '../input/engine-flags.ts'
import { USUAL_CONTEXT, warningsOf } from '../../compose/open-engine.ts'
import { openUntil } from '../input/open-until.ts'
import { prepareCommand, preparePreset } from '../input/prepare-harness.ts'
import { recordSession, type Recorded, type RecordOptions } from '../../compose/record-session.ts'
import { assertWritable } from '../../compose/writable.ts'
import { DEFAULT_OUT } from '../input/resolve-session.ts'
import { formatCallTable, toSummary } from '../views/session-view.ts'
import { printError, printJson } from '../views/print.ts'

const FLAGS = {
  harness: option('NAME', 'Run this harness non-interactively, with all permissions, in a HOME directory of its own', {
    choices: presets.map(({ name }) => name),
  }),
  'harness-module': option('FILE', 'Instead of --harness: a JavaScript or TypeScript module that exports "harness"'),
  'allow-module': option('FILE', 'Module that --agent may name as import_path; may be repeated', { multiple: true }),
  'prompt-file': option('FILE', 'File with the prompt; - is standard input'),
  'harness-dir': option('DIR', HARNESS_DIR_HELP),
  agent: option(
    'FILE',
    'YAML or JSON file with settings, mcp_servers, skills_path, env and custom_shell, as in a task; may also name the harness',
  ),
  images: toggle('Configure the harness for a model that accepts images'),
  context: option('TOKENS', 'Context size that the harness is configured with (default: the limit of the engine)'),
  env: option('NAMES', 'Environment variables that --harness passes on, separated by commas'),
  ...ENGINE_FLAGS,
  'engine-key': ENGINE_KEY_FLAG,
  out: option('DIR', 'Folder for sessions', { default: DEFAULT_OUT }),
  'engine-log': option('FILE', 'File that the tiny engine writes a JSON line to for each generation'),
  continuation: CONTINUATION_FLAG,
  quirks: QUIRKS_FLAG,
  durability: DURABILITY_FLAG,
  json: toggle('Print the summary as JSON on standard output'),
  verbose: toggle('Log at level debug'),
}

export const command = defineCommand({
  name: 'record',
  description: 'Run a harness and record all its model calls with exact tokens.',
  subject: { name: 'prompt', description: 'Prompt for the harness of --harness' },
  rest: 'the command to run, which finds the gateway by OPENAI_BASE_URL and similar variables; or more arguments for --harness',
  flags: FLAGS,
  examples: [
    'polar record --harness claude_code "Fix the failing test"',
    'polar record -- pi -p "What is in this folder?"',
    'polar record --engine-url http://localhost:8000 --model Qwen/Qwen3-8B -- my-agent --task task.md',
  ],
  async run({ flags, subject, rest }): Promise<ExitCode> {
    const what = await readChoice(flags, subject, rest)
    const dir = resolve(flags.out)
    await assertWritable(dir)
    const quirks = await loadQuirks(flags.quirks)
    using interrupted = listenForInterrupt()
    const now = Date.now
    const choice = { ...toEngineChoice('record', flags), log: flags['engine-log'] }
    await using engine = await openUntil(interrupted.signal, choice)
    if (engine === undefined) return EXIT.interrupted
    for (const warning of warningsOf(engine, flags.continuation)) printError(`${warning}\n`)
    await using store = createCallLogStore({ dir, durability: flags.durability as 'process' | 'disk', now })
    const recorded = await recordSession({
      continuation: flags.continuation as ContinuationMode,
      quirks,
      ...toRecord(what, flags, { model: engine.info.model, contextTokens: engine.contextTokens }),
      upstream: engine.upstream,
      engine: engine.info,
      store,
      reader: createCallLogReader({ dir }),
      ids: randomIds(now),
      now,
      logger: createLogger(flags.verbose ? 'debug' : 'warn'),
      stdout: flags.json ? 'stderr' : 'inherit',
      signal: interrupted.signal,
    })
    report(recorded, what.harness, dir, flags.json)
    if (interrupted.signal.aborted) return EXIT.interrupted
    return recorded.exitCode === 0 && recorded.session.complete ? EXIT.done : EXIT.failed
  },
})

type RecordFlags = FlagValues<typeof FLAGS>

/** A harness with its prompt, or a command of the user. */
type Choice =
  | {
      harness: Harness
      found?: FoundHarness
      prompt: string
      extraArgs: readonly string[]
      agent: AgentOptions
    }
  | { harness?: undefined; command: readonly [string, ...string[]] }

async function readChoice(flags: RecordFlags, word: string, rest: readonly string[]): Promise<Choice> {
  if (isForHarness(flags, word, rest)) {
    const prompt = await readPrompt(flags['prompt-file'], word)
    const { harness, agent } = await readHarness(flags)
    const choice = { harness, prompt, extraArgs: rest, agent }
    return isPackaged(harness) ? { ...choice, found: await findOrExplain(harness, flags) } : choice
  }
  for (const flag of ['prompt-file', 'harness-dir', 'agent', 'context', 'env', 'images'] as const) {
    if (flags[flag]) throw usageError('record', `--${flag} needs --harness`)
  }
  if (word !== '') throw usageError('record', `unexpected argument "${word}"; a prompt needs --harness`)
  const [file, ...args] = rest
  if (file !== undefined) return { command: [file, ...args] }
  throw usageError('record', 'name what to run: --harness NAME "prompt", or a command after --')
}

/** Whether to run a harness. An agent file may name it, unless a command without a prompt follows `--`. */
function isForHarness(flags: RecordFlags, word: string, rest: readonly string[]): boolean {
  if (flags.harness !== undefined || flags['harness-module'] !== undefined) return true
  return flags.agent !== undefined && (rest.length === 0 || word !== '' || flags['prompt-file'] !== undefined)
}

async function readHarness(flags: RecordFlags): Promise<{ harness: Harness; agent: AgentOptions }> {
  const file = flags['harness-module']
  if (file !== undefined && flags.harness !== undefined)
    throw usageError('record', 'use --harness or --harness-module, not both')
  // The user of this program can run any code, so a module that the user names is allowed.
  const allowed = await allowModules(
    [...flags['allow-module'], ...(file === undefined ? [] : [file])].map((path) => resolve(path)),
  )
  if (flags.agent === undefined) {
    const harness =
      file === undefined ? presetNamed(flags.harness ?? '') : await loadHarness(resolve(file), { allowed })
    return { harness, agent: NO_OPTIONS }
  }
  const preset = flags.harness === undefined ? undefined : { harness: flags.harness }
  const agent = await loadAgent(flags.agent, file === undefined ? preset : { import_path: resolve(file) })
  const path = agent.import_path
  return { harness: path == null ? presetNamed(agent.harness ?? '') : await loadHarness(path, { allowed }), agent }
}

async function readPrompt(file: string | undefined, word: string): Promise<string> {
  if (file !== undefined && word !== '') throw usageError('record', 'use a prompt or --prompt-file, not both')
  const prompt = file === undefined ? word : await readPromptFile(file)
  if (prompt.trim() !== '') return prompt
  throw usageError('record', 'the prompt is missing, as in: polar record --harness pi "Who are you?"')
}

function readPromptFile(file: string): Promise<string> {
  return orInvalid(`Cannot read the prompt ${file}`, () =>
    file === '-' ? text(process.stdin) : readFile(file, 'utf8'),
  )
}

async function findOrExplain(harness: PackagedHarness, flags: RecordFlags): Promise<FoundHarness> {
  const dir = flags['harness-dir']
  const found = await findHarness(harness, harnessPlaces(dir, process.env))
  if (found) return found
  const isOurs = presets.some(({ name }) => name === harness.name)
  const which = isOurs ? harness.name : `--module ${flags['harness-module'] ?? 'FILE'}`
  const install = `polar harness install ${which}${dir === undefined ? '' : ` --dir ${dir}`}`
  const message = `${harness.title} ${harness.package.version} is not installed. Install it with: ${install}`
  throw new RolloutError('harness.not-found', message)
}

function toRecord(
  choice: Choice,
  flags: RecordFlags,
  engine: { model: string; contextTokens: number | undefined },
): Pick<RecordOptions, 'origin' | 'prepare'> {
  if (choice.harness === undefined) {
    const { command: line } = choice
    const options = { env: process.env, model: engine.model }
    return { origin: { command: line }, prepare: async (access) => prepareCommand(line, { ...options, access }) }
  }
  const { harness } = choice
  const chosen = parseNumber('record', 'context', flags.context, { min: 1024, max: 100_000_000 })
  const contextTokens = chosen ?? engine.contextTokens ?? USUAL_CONTEXT
  const preset = {
    ...choice,
    model: { model: engine.model, contextTokens, images: flags.images },
    env: process.env,
    workdir: process.cwd(),
    kept: (flags.env ?? '').split(',').filter((name) => name !== ''),
    tmpdir: tmpdir(),
  }
  return {
    origin: { harness: { name: harness.name, version: harness.package?.version, path: choice.found?.path } },
    prepare: (access) => preparePreset(preset, access),
  }
}

const NO_CALLS = `No model call was recorded. The config of the harness may name another URL than the gateway's.
--verbose logs requests that the gateway rejected.
`

/** Prints to standard error, because standard output is the harness's. */
function report(
  { session, exitCode, durationMs }: Recorded,
  harness: Harness | undefined,
  dir: string,
  asJson: boolean,
): void {
  const path = join(dir, session.id)
  const end = harness === undefined ? undefined : endOf(harness, exitCode)
  if (asJson) {
    const about = harness === undefined ? {} : { harness: harness.name, harness_end: end }
    const summary = { ...toSummary(session), ...about, path, exit_code: exitCode, duration_ms: durationMs }
    printJson(summary)
    return
  }
  const lines = [
    '',
    session.turns.length === 0 ? NO_CALLS : formatCallTable(session),
    `Session  ${session.id}  (${(durationMs / 1000).toFixed(1)} s, harness exit code ${exitCode}${end === undefined ? '' : `: ${end}`})`,
    `Written  ${path}`,
    ...session.incompleteReasons.map((reason) => `INCOMPLETE  ${toVisibleLine(reason)}`),
    `Read it  polar show ${session.id}${dir === resolve(DEFAULT_OUT) ? '' : ` --from ${dir}`}`,
    '',
  ]
  printError(lines.join('\n'))
}
