import { loadConfig, type LoadedConfig } from '../../config/load-config.ts'
import { runtimes } from '../../node/sandbox/runtimes/index.ts'
import { ENGINE_FLAGS } from './engine-flags.ts'
import { printError } from '../views/print.ts'
import { option, toggle } from '../command.ts'

/** These flags have no defaults, so that the environment, the config file and the schema apply where a flag is absent. */
export const DATA_FLAGS = {
  config: option('FILE', 'Config file (default: POLAR_CONFIG, else polar.yaml if it exists)'),
  dir: option('DIR', 'Data folder (default: .polar/up)'),
} as const

/** Flags of commands that call a server as a trainer. */
export const TRAINER_FLAGS = {
  server: option('URL', 'URL of the server (default: POLAR_SERVER_URL, else the server of --dir)'),
  'token-file': option('FILE', 'File with a token of scope trainer; or set POLAR_TOKEN'),
  ...DATA_FLAGS,
} as const

export const SERVER_FLAGS = {
  host: option('ADDRESS', 'Address to listen on (default: 127.0.0.1)'),
  port: option('N', 'Port to listen on; 0 chooses a free port (default: 8080)'),
  database: option('URL', 'Database: embedded, or a postgres:// URL (default: embedded)'),
  open: toggle('Accept requests without a token; only on a loopback address'),
} as const

export const NODE_ENGINE_FLAGS = {
  ...ENGINE_FLAGS,
  context: option('N', 'Context size in tokens that harnesses are configured with'),
} as const

export const NODE_FLAGS = {
  label: option('LABEL', 'Label of this node that tasks can require, such as gpu; may be repeated', { multiple: true }),
  init: option('N', 'Sandboxes prepared at a time (default: 4)'),
  ready: option('N', 'Prepared sandboxes that may wait for an agent slot (default: 4)'),
  run: option('N', 'Agents that run at a time (default: 4)'),
  postrun: option('N', 'Sessions graded at a time (default: 4)'),
  runtime: option('KIND', 'Runtime of tasks that name none (default: bubblewrap)', { choices: runtimes.kinds }),
  'harness-dir': option('DIR', 'Folder of installed harnesses (default: .polar/harnesses)'),
  'allow-module': option('FILE', 'Module that tasks may load; may be repeated', { multiple: true }),
} as const

export const RUNTIMES_CONFIG_FLAG = option(
  'FILE',
  'Config file, for node.runtime, node.runtimes and node.checkouts (default: POLAR_CONFIG, else polar.yaml)',
)

export const VERBOSE_FLAG = toggle('Log at level debug')

/** Config path that each flag sets. */
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
  'engine-wait': 'engine.wait_seconds',
  model: 'engine.model',
  script: 'engine.script',
  context: 'engine.context',
}

type FlagValues = Readonly<Record<string, string | readonly string[] | boolean | undefined>>

/** Loads the configuration, overridden by a command's flags. Prints warnings on standard error. */
export async function loadFromFlags(
  flags: FlagValues & { config?: string },
  env: NodeJS.ProcessEnv = process.env,
  paths: Readonly<Record<string, string>> = PATHS,
): Promise<LoadedConfig> {
  const loaded = await loadConfig({
    file: flags.config,
    env,
    flags: [
      ...Object.entries(paths).map(([flag, path]) => ({ flag, path, value: flags[flag] })),
      { flag: 'verbose', path: 'log', value: flags['verbose'] === true ? 'debug' : undefined },
    ],
  })
  for (const warning of loaded.warnings) printError(`Warning: ${warning}\n`)
  return loaded
}
