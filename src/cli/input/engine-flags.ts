import { upstreams } from '../../gateway/upstreams/index.ts'
import type { EngineChoice } from '../../compose/open-engine.ts'
import { ENGINE_WAIT_SECONDS } from '../../config/engine-section.ts'
import { parseNumber } from '../command.ts'
import { printError } from '../views/print.ts'

/** Flags that choose the inference engine. None has a default, so that the config file applies where a flag is absent. */
export const ENGINE_FLAGS = {
  'engine-url': {
    type: 'string',
    hint: 'URL',
    formerly: 'upstream',
    description: 'Inference engine, or replicas separated by commas (default: start the tiny engine)',
  },
  'engine-kind': {
    type: 'string',
    hint: 'KIND',
    formerly: 'engine',
    choices: ['auto', ...upstreams.kinds],
    description: 'Kind of the engine at --engine-url (default: auto, which detects it)',
  },
  'engine-wait': {
    type: 'string',
    hint: 'SECONDS',
    description: `How long to wait for an engine that is loading or busy (default: ${ENGINE_WAIT_SECONDS})`,
  },
  model: { type: 'string', hint: 'NAME', description: 'Model to request (default: the first that the engine serves)' },
  script: { type: 'string', hint: 'FILE', description: 'YAML file of turns that the tiny engine replays' },
} as const

/** Only for commands without a config file; other commands read `engine.key_file` or `engine.key_env`. */
export const ENGINE_KEY_FLAG = {
  type: 'string',
  hint: 'KEY',
  formerly: 'upstream-key',
  description: 'API key of the engine; or set POLAR_UPSTREAM_KEY',
} as const

export const CONTINUATION_FLAG = {
  type: 'string',
  hint: 'MODE',
  choices: ['template', 'preserve', 'off'],
  default: 'template',
  description:
    'Continue prompts token by token: drop reasoning as the chat template does, preserve it, or render every prompt anew',
} as const

export const DURABILITY_FLAG = {
  type: 'string',
  hint: 'KIND',
  choices: ['process', 'disk'],
  default: 'process',
  description: 'Stored turns survive a crash of the process, or of the machine (disk: fsync)',
} as const

interface EngineFlags {
  'engine-url'?: string
  'engine-kind'?: string
  'engine-key'?: string
  'engine-wait'?: string
  model?: string
  script?: string
}

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
