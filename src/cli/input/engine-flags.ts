import { upstreams } from '../../gateway/upstreams/index.ts'
import type { EngineChoice } from '../../compose/open-engine.ts'
import { ENGINE_WAIT_SECONDS } from '../../config/engine-section.ts'
import { option, parseNumber, type FlagValues } from '../command.ts'
import { printError } from '../views/print.ts'

/** Flags that choose the inference engine. None has a default, so that the config file applies where a flag is absent. */
export const ENGINE_FLAGS = {
  'engine-url': option('URL', 'Inference engine, or replicas separated by commas (default: start the tiny engine)', {
    formerly: 'upstream',
  }),
  'engine-kind': option('KIND', 'Kind of the engine at --engine-url (default: auto, which detects it)', {
    formerly: 'engine',
    choices: ['auto', ...upstreams.kinds],
  }),
  'engine-wait': option(
    'SECONDS',
    `How long to wait for an engine that is loading or busy (default: ${ENGINE_WAIT_SECONDS})`,
  ),
  model: option('NAME', 'Model to request (default: the first that the engine serves)'),
  script: option('FILE', 'YAML file of turns that the tiny engine replays'),
} as const

/** Only for commands without a config file; other commands read `engine.key_file` or `engine.key_env`. */
export const ENGINE_KEY_FLAG = option('KEY', 'API key of the engine; or set POLAR_UPSTREAM_KEY', {
  formerly: 'upstream-key',
})

export const CONTINUATION_FLAG = option(
  'MODE',
  'Continue prompts token by token: drop reasoning as the chat template does, preserve it, or render every prompt anew',
  { choices: ['template', 'preserve', 'off'], default: 'template' },
)

export const QUIRKS_FLAG = option(
  'FILES',
  'Rule files that normalise bytes of requests that change from call to call, separated by commas; see polar drift --suggest',
)

export const DURABILITY_FLAG = option(
  'KIND',
  'Stored turns survive a crash of the process, or of the machine (disk: fsync)',
  { choices: ['process', 'disk'], default: 'process' },
)

type EngineFlags = Partial<FlagValues<typeof ENGINE_FLAGS & { 'engine-key': typeof ENGINE_KEY_FLAG }>>

/** `command` is the name of the command, for messages. What the command waits for is printed on standard error. */
export function toEngineChoice(command: string, flags: EngineFlags): EngineChoice {
  const wait = flags['engine-wait'] ?? String(ENGINE_WAIT_SECONDS)
  return {
    waitMs: 1000 * parseNumber(command, 'engine-wait', wait, { min: 0, max: 86_400 }),
    onWait: (sentence) => printError(`${sentence}\n`),
    url: flags['engine-url'],
    kind: flags['engine-kind'],
    model: flags.model,
    script: flags.script,
    key: flags['engine-key'] ?? process.env['POLAR_UPSTREAM_KEY'],
  }
}
