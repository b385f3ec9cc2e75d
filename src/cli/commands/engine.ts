import { readFile } from 'node:fs/promises'
import type { WireKind } from '@polar-rl/tiny-engine'
import { startTinyEngine } from '../../compose/tiny-engine.ts'
import { RolloutError } from '../../model/failure.ts'
import { isLoopbackHost } from '../../lib/net/loopback-host.ts'
import { untilSignal } from '../until-signal.ts'
import { defineCommand, EXIT, parseNumber, usageError, type ExitCode } from '../command.ts'
import { print } from '../views/print.ts'

const WIRES = ['vllm', 'sglang', 'llamacpp', 'openai'] as const satisfies readonly WireKind[]
const BACKENDS = ['auto', 'native', 'wasm'] as const

export const engine = defineCommand({
  name: 'engine',
  description: 'Serve the tiny model, or a script, on this machine the way a vLLM server does.',
  flags: {
    port: { type: 'string', hint: 'N', description: 'Port to listen on; 0 takes one that is free', default: '0' },
    host: { type: 'string', hint: 'ADDRESS', description: 'Address to listen on', default: '127.0.0.1' },
    wire: {
      type: 'string',
      hint: 'KIND',
      choices: WIRES,
      default: 'vllm',
      description: 'Whose HTTP API to speak, as far as a gateway needs it',
    },
    'wire-version': {
      type: 'string',
      hint: 'VERSION',
      description: 'An older version of it, as vLLM 0.12 or SGLang 0.5.14, with what that one gets wrong',
    },
    'model-name': { type: 'string', hint: 'NAME', description: 'What the model is called', default: 'tiny' },
    'max-model-len': { type: 'string', hint: 'N', description: 'Tokens of prompt and answer', default: '32768' },
    script: { type: 'string', hint: 'FILE', description: 'Turns to play instead of asking the model (YAML)' },
    log: { type: 'string', hint: 'FILE', description: 'Gets a JSON line per generation: ids, log probabilities, text' },
    backend: {
      type: 'string',
      hint: 'KIND',
      choices: BACKENDS,
      default: 'auto',
      description: 'What the model runs on; native needs the package onnxruntime-node',
    },
    workers: { type: 'string', hint: 'N', description: 'Threads for the model; without it one per core, at most 4' },
    'api-key': { type: 'string', hint: 'KEY', description: 'Ask clients for this key; needed beyond this machine' },
  },
  examples: [
    'polar engine --port 8000',
    'polar engine --port 30000 --wire sglang',
    `curl http://127.0.0.1:8000/v1/chat/completions -H 'content-type: application/json' -d '{"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 32}'`,
  ],
  async run({ flags }): Promise<ExitCode> {
    const { host, script } = flags
    const apiKey = flags['api-key']
    if (!isLoopbackHost(host) && apiKey === undefined) {
      throw usageError(
        'engine',
        `${host} can be reached from other machines; give an --api-key, or listen on 127.0.0.1`,
      )
    }
    const number = (flag: 'port' | 'max-model-len' | 'workers', min: number, max: number): number | undefined => {
      const text = flags[flag]
      return text === undefined ? undefined : parseNumber('engine', flag, text, { min, max })
    }
    const options = {
      host,
      port: number('port', 0, 65_535),
      wire: WIRES.find((kind) => kind === flags.wire),
      wireVersion: flags['wire-version'],
      servedModelName: flags['model-name'],
      maxModelLen: number('max-model-len', 2, 32_768),
      script: script === undefined ? undefined : await readScript(script),
      log: flags.log,
      model: { backend: BACKENDS.find((kind) => kind === flags.backend), workers: number('workers', 1, 64) },
      apiKey,
    }
    const interruption = untilSignal()
    await using running = await startTinyEngine(options)
    print(`${running.url}\n`)
    const signal = await interruption
    return signal === 'SIGINT' ? EXIT.interrupted : EXIT.done
  },
})

async function readScript(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8')
  } catch (error) {
    throw new RolloutError('config.invalid', `Cannot read the script ${path}: ${(error as Error).message}`, {
      cause: error,
    })
  }
}
