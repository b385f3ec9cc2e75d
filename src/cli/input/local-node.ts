import { hostname } from 'node:os'
import { createLogger } from '../../compose/create-logger.ts'
import { HARNESS_DIR_HELP } from '../../compose/harness-folders.ts'
import { loadQuirks } from '../../compose/load-quirks.ts'
import { warningsOf } from '../../compose/open-engine.ts'
import { openNode, type OpenNode } from '../../compose/open-node.ts'
import { loadRuntimeSettings } from '../../compose/runtime-settings.ts'
import { assertWritable } from '../../compose/writable.ts'
import type { ContinuationMode } from '../../gateway/sessions/sessions.ts'
import { runtimes } from '../../node/sandbox/runtimes/index.ts'
import { ArtifactPolicy } from '../../node/session/artifacts.ts'
import { StageWidths } from '../../node/session/stages.ts'
import { option, parseNumber, toggle, type FlagValues } from '../command.ts'
import { printError } from '../views/print.ts'
import { RUNTIMES_CONFIG_FLAG } from './config-flags.ts'
import { CONTINUATION_FLAG, ENGINE_FLAGS, ENGINE_KEY_FLAG, QUIRKS_FLAG, toEngineChoice } from './engine-flags.ts'
import { openUntil } from './open-until.ts'

/** Flags of commands that run sessions on this machine without a server. */
export const LOCAL_NODE_FLAGS = {
  config: RUNTIMES_CONFIG_FLAG,
  runtime: option('KIND', 'Runtime of tasks that name none (default: bubblewrap)', { choices: runtimes.kinds }),
  init: option('N', 'Sandboxes prepared at a time', { default: '4' }),
  ready: option('N', 'Prepared sandboxes that may wait for an agent slot', { default: '4' }),
  run: option('N', 'Agents that run at a time', { default: '4' }),
  postrun: option('N', 'Sessions graded at a time', { default: '4' }),
  artifacts: option('WHICH', 'Sessions whose output, logs and grading evidence are kept', {
    choices: ['all', 'failures', 'none'],
    default: 'all',
  }),
  ...ENGINE_FLAGS,
  'engine-key': ENGINE_KEY_FLAG,
  context: option('N', 'Context size in tokens that harnesses are configured with'),
  images: toggle('The model accepts images'),
  continuation: CONTINUATION_FLAG,
  quirks: QUIRKS_FLAG,
  'harness-dir': option('DIR', HARNESS_DIR_HELP),
  verbose: toggle('Log at level debug'),
} as const

export type LocalNodeFlags = FlagValues<typeof LOCAL_NODE_FLAGS>

export interface LocalNode extends AsyncDisposable {
  opened: OpenNode
  widths: StageWidths
}

export interface LocalNodeOptions {
  /** Folder of the sessions. */
  dir: string
  /** Modules that tasks may load. */
  modules: readonly string[]
  signal: AbortSignal
}

/** Opens the engine and a node that uses it. Undefined if `signal` aborts while the command waits for the engine. */
export async function openLocalNode(
  command: string,
  flags: LocalNodeFlags,
  { dir, modules, signal }: LocalNodeOptions,
): Promise<LocalNode | undefined> {
  const settings = await loadRuntimeSettings(process.env, flags.config)
  const widths = toWidths(command, flags)
  const contextTokens = parseNumber(command, 'context', flags.context, { min: 1024, max: 100_000_000 })
  await assertWritable(dir)
  await using owned = new AsyncDisposableStack()
  const engine = await openUntil(signal, toEngineChoice(command, flags))
  if (engine === undefined) return undefined
  owned.use(engine)
  for (const warning of warningsOf(engine, flags.continuation)) printError(`${warning}\n`)
  const opened = owned.use(
    await openNode({
      nodeId: hostname(),
      dir,
      engine,
      runtime: flags.runtime ?? settings.runtime,
      runtimeSettings: settings.runtimes,
      gitCredentials: settings.gitCredentials,
      sandboxMemoryMb: settings.sandboxMemoryMb,
      widths,
      budgets: { init: 900, evaluate: 1800 },
      artifacts: ArtifactPolicy.parse({ keep: flags.artifacts }),
      modules,
      harnessDir: flags['harness-dir'],
      contextTokens,
      images: flags.images,
      continuation: flags.continuation as ContinuationMode,
      quirks: await loadQuirks(flags.quirks),
      env: process.env,
      logger: createLogger(flags.verbose ? 'debug' : 'error'),
    }),
  )
  const all = owned.move()
  return { opened, widths, [Symbol.asyncDispose]: () => all.disposeAsync() }
}

/** The widths of the stages that the flags set. */
export function toWidths(
  command: string,
  flags: Pick<LocalNodeFlags, 'init' | 'ready' | 'run' | 'postrun'>,
): StageWidths {
  const width = (flag: keyof typeof flags, min: number): number =>
    parseNumber(command, flag, flags[flag], { min, max: 100_000 })
  const postrun = width('postrun', 1)
  return StageWidths.parse({
    init: width('init', 1),
    ready: width('ready', 0),
    run: width('run', 1),
    postrun,
    backlog: 2 * postrun,
  })
}
