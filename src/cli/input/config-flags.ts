import { loadConfig, type LoadedConfig } from '../../config/load-config.ts'
import { runtimes } from '../../node/sandbox/runtimes/index.ts'
import { ENGINE_FLAGS } from './engine-flags.ts'
import { printError } from '../views/print.ts'

/** Flags without defaults: what they do not say is for the environment, the file and the schema to say. */
export const PLACE_FLAGS = {
  config: {
    type: 'string',
    hint: 'FILE',
    description: 'Settings (default: POLAR_CONFIG, else polar.yaml if it is there)',
  },
  dir: { type: 'string', hint: 'DIR', description: 'Folder of everything that is kept (default: .polar/up)' },
} as const

export const SERVER_FLAGS = {
  host: { type: 'string', hint: 'ADDRESS', description: 'Where to listen (default: 127.0.0.1)' },
  port: { type: 'string', hint: 'N', description: 'Port; 0 takes a free one (default: 8080)' },
  database: { type: 'string', hint: 'URL', description: 'embedded, or a postgres:// URL (default: embedded)' },
  open: { type: 'boolean', description: 'Ask nobody for a token; on a loopback address only' },
} as const

export const NODE_ENGINE_FLAGS = {
  ...ENGINE_FLAGS,
  context: { type: 'string', hint: 'N', description: 'Context size in tokens that harnesses are configured with' },
} as const

export const NODE_FLAGS = {
  label: {
    type: 'string',
    hint: 'LABEL',
    multiple: true,
    description: 'What this machine has, such as gpu; may be repeated',
  },
  init: { type: 'string', hint: 'N', description: 'Sandboxes being made ready at a time (default: 4)' },
  ready: { type: 'string', hint: 'N', description: 'Sandboxes that may stand ready (default: 4)' },
  run: { type: 'string', hint: 'N', description: 'Agents at work at a time (default: 4)' },
  postrun: { type: 'string', hint: 'N', description: 'Sessions being graded at a time (default: 4)' },
  runtime: {
    type: 'string',
    hint: 'KIND',
    choices: runtimes.kinds,
    description: 'Runtime of tasks that name none (default: bubblewrap)',
  },
  'harness-dir': {
    type: 'string',
    hint: 'DIR',
    description: 'Where harnesses are installed (default: .polar/harnesses)',
  },
  'allow-module': {
    type: 'string',
    hint: 'FILE',
    multiple: true,
    description: 'Trust the code of this module that a task names',
  },
} as const

export const VERBOSE_FLAG = { type: 'boolean', description: 'Log what happens' } as const

/** What each flag says, in the words of the file. */
const PATHS: Readonly<Record<string, string>> = {
  dir: 'data',
  host: 'server.host',
  port: 'server.port',
  database: 'server.database',
  open: 'server.open',
  id: 'node.id',
  server: 'node.server',
  'token-file': 'node.token_file',
  label: 'node.labels',
  init: 'node.widths.init',
  ready: 'node.widths.ready',
  run: 'node.widths.run',
  postrun: 'node.widths.postrun',
  runtime: 'node.runtime',
  'harness-dir': 'node.harness_dir',
  'allow-module': 'node.modules',
  'allow-path': 'node.allow.paths',
  'engine-url': 'engine.url',
  'engine-kind': 'engine.kind',
  model: 'engine.model',
  script: 'engine.script',
  context: 'engine.context',
}

type FlagValues = Readonly<Record<string, string | readonly string[] | boolean | undefined>>

/** The configuration with a command's flags over it. What is odd about it is said on standard error. */
export async function loadFromFlags(
  flags: FlagValues & { config?: string },
  env: NodeJS.ProcessEnv = process.env,
): Promise<LoadedConfig> {
  const loaded = await loadConfig({
    ...(flags.config === undefined ? {} : { file: flags.config }),
    env,
    flags: [
      ...Object.entries(PATHS).map(([flag, path]) => ({ flag, path, value: flags[flag] })),
      { flag: 'verbose', path: 'log', value: flags['verbose'] === true ? 'debug' : undefined },
    ],
  })
  for (const warning of loaded.warnings) printError(`Warning: ${warning}\n`)
  return loaded
}
