import type { WireKind } from '@polar-rl/tiny-engine'
import { readScript } from '../../compose/open-engine.ts'
import { startTinyEngine } from '../../compose/tiny-engine.ts'
import { isLoopbackHost } from '../../lib/net/loopback-host.ts'
import { untilSignal } from '../until-signal.ts'
import { defineCommand, EXIT, option, parseNumber, toggle, usageError, type ExitCode } from '../command.ts'
import { print } from '../views/print.ts'

const WIRES = ['vllm', 'sglang', 'llamacpp', 'openai'] as const satisfies readonly WireKind[]
const BACKENDS = ['auto', 'native', 'wasm'] as const

export const command = defineCommand({
  name: 'engine',
  description: 'Serve the tiny model, or a script, over the HTTP API of vLLM or another engine.',
  flags: {
    port: option('N', 'Port to listen on; 0 chooses a free port', { default: '0' }),
    host: option('ADDRESS', 'Address to listen on', { default: '127.0.0.1' }),
    wire: option('KIND', 'Engine whose HTTP API is served, as far as a gateway needs it', {
      choices: WIRES,
      default: 'vllm',
    }),
    'wire-version': option(
      'VERSION',
      'Older version to imitate, including its bugs, such as 0.12 for vLLM or 0.5.14 for SGLang',
    ),
    'enable-scale-out': toggle('Enable /render and /inference/v1/generate, which vLLM disables by default since 0.30'),
    'model-name': option('NAME', 'Name of the served model', { default: 'tiny' }),
    'max-model-len': option('N', 'Context limit in tokens, prompt and answer together', { default: '32768' }),
    script: option('FILE', 'YAML file of turns to replay instead of sampling from the model'),
    log: option('FILE', 'File for a JSON line per generation: ids, log probabilities, text'),
    backend: option('KIND', 'Runtime of the model; native needs the package onnxruntime-node', {
      choices: BACKENDS,
      default: 'auto',
    }),
    workers: option('N', 'Threads for the model (default: one per core, at most 4)'),
    'api-key': option('KEY', 'Key that clients must send; required unless the address is loopback'),
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
      throw usageError('engine', `${host} can be reached from other machines; set --api-key, or listen on 127.0.0.1`)
    }
    const number = (flag: 'port' | 'max-model-len' | 'workers', min: number, max: number) =>
      parseNumber('engine', flag, flags[flag], { min, max })
    const options = {
      host,
      port: number('port', 0, 65_535),
      wire: WIRES.find((kind) => kind === flags.wire),
      wireVersion: flags['wire-version'],
      scaleOut: flags['enable-scale-out'],
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
