import { spawn, type ChildProcess } from 'node:child_process'
import { createServer, type AddressInfo } from 'node:net'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { fileURLToPath } from 'node:url'
import { convertModel, models, type ModelName } from './convert-models.ts'
import { installEnvironment, type EnvironmentName } from './install-engine.ts'

const python = fileURLToPath(new URL('python', import.meta.url))

/** Two idle cores load vLLM in 30 to 100 s; a busy machine needs many minutes. */
const START_TIMEOUT_MS = 3_600_000

export interface EngineStart {
  environment: Extract<EnvironmentName, `vllm-${string}` | 'llamacpp'>
  model: ModelName
  /** Further arguments of `vllm serve`; without them it is started as docs/engines.md says. */
  flags?: readonly string[]
  /** JSON file of scripted answers, see python/forced_turns.py. Only vLLM. */
  forcedTurns?: string
  port?: number
}

/** A server of a real engine on this machine, in a process group of its own. */
export class RealEngine implements AsyncDisposable {
  readonly url: string
  readonly model: ModelName
  readonly start: EngineStart
  /** Milliseconds until the engine was ready. */
  readyAfterMs = Number.NaN
  readonly #child: ChildProcess
  #output = ''

  private constructor(start: EngineStart, port: number, child: ChildProcess) {
    this.start = { ...start, port }
    this.model = start.model
    this.url = `http://127.0.0.1:${port}`
    this.#child = child
    for (const stream of [child.stdout, child.stderr]) {
      stream?.setEncoding('utf8').on('data', (text: string) => (this.#output = (this.#output + text).slice(-20_000)))
    }
  }

  /** Starts the process and does not wait until the model is loaded. Returns the reason if the engine cannot be installed. */
  static async launch(start: EngineStart): Promise<RealEngine | string> {
    const installed = installEnvironment(start.environment)
    if (typeof installed === 'string') return installed
    const model = convertModel(start.model)
    if (typeof model === 'string') return model
    const port = start.port ?? (await freePort())
    const isVllm = start.environment !== 'llamacpp'
    const [file, args] = isVllm
      ? [join(installed.folder, 'bin/vllm'), vllmArguments(start, model.folder, port)]
      : [installed.python, llamacppArguments(start, model.folder, port)]
    const child = spawn(file, args, {
      detached: true,
      stdio: ['ignore', 'pipe', 'pipe'],
      env: { ...process.env, ...(isVllm ? vllmEnvironment(start, installed.folder) : {}) },
    })
    return new RealEngine(start, port, child)
  }

  static async open(start: EngineStart): Promise<RealEngine | string> {
    const engine = await RealEngine.launch(start)
    if (typeof engine === 'string') return engine
    try {
      await engine.ready()
      return engine
    } catch (error) {
      await engine[Symbol.asyncDispose]()
      throw error
    }
  }

  /** Waits until the engine has answered a request: the first one is slow. */
  async ready(): Promise<void> {
    const startedAt = performance.now()
    while (!(await this.isHealthy())) {
      if (this.#child.exitCode !== null)
        throw new Error(`The engine ended with ${this.#child.exitCode}:\n${this.#output}`)
      if (performance.now() - startedAt > START_TIMEOUT_MS)
        throw new Error(`The engine does not start:\n${this.#output}`)
      await sleep(500)
    }
    const body = { model: this.model, prompt: 'Hello', max_tokens: 2 }
    const answer = await this.post('/v1/completions', body)
    if (!answer.ok) throw new Error(`The first request failed with ${answer.status}: ${await answer.text()}`)
    this.readyAfterMs = performance.now() - startedAt
  }

  async isHealthy(): Promise<boolean> {
    const answer = await fetch(`${this.url}/health`).catch(() => undefined)
    return answer?.ok ?? false
  }

  post(path: string, body: unknown): Promise<Response> {
    return fetch(this.url + path, {
      method: 'POST',
      headers: { 'content-type': 'application/json' },
      body: JSON.stringify(body),
    })
  }

  /** Number of requests that the engine works on, from its metrics. */
  async runningRequests(): Promise<number> {
    const text = await (await fetch(`${this.url}/metrics`)).text()
    const value = /^(?:vllm:num_requests_running|llamacpp:requests_processing)(?:\{[^}]*\})? (\S+)$/m.exec(text)?.[1]
    if (value === undefined) throw new Error('The engine reports no number of running requests.')
    return Number(value)
  }

  /** Kills the engine as an out-of-memory kill does. */
  async kill(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return
    const closed = new Promise((resolve) => this.#child.once('close', resolve))
    process.kill(-this.#child.pid!, 'SIGKILL')
    await closed
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.kill()
  }
}

function vllmArguments({ model, flags = [], forcedTurns }: EngineStart, folder: string, port: number): string[] {
  return [
    'serve',
    folder,
    '--served-model-name',
    model,
    '--host=127.0.0.1',
    `--port=${port}`,
    // Needed on a machine with two cores and no GPU.
    '--enforce-eager',
    '--dtype=float32',
    `--max-model-len=${models[model].contextTokens}`,
    '--max-num-seqs=8',
    // As docs/engines.md says.
    '--generation-config=vllm',
    '--enable-auto-tool-choice',
    '--tool-call-parser=hermes',
    ...(forcedTurns === undefined ? [] : ['--logits-processors', 'forced_turns:ForcedTurns']),
    ...flags,
  ]
}

function vllmEnvironment({ forcedTurns }: EngineStart, folder: string): Record<string, string> {
  return {
    OMP_NUM_THREADS: '1',
    VLLM_CPU_OMP_THREADS_BIND: 'nobind',
    VLLM_CPU_KVCACHE_SPACE: '2',
    VLLM_NO_USAGE_STATS: '1',
    HF_HUB_OFFLINE: '1',
    TRANSFORMERS_OFFLINE: '1',
    PYTHONPATH: python,
    PATH: `${join(folder, 'bin')}:${process.env['PATH']}`,
    ...(forcedTurns === undefined ? {} : { FORCED_TURNS: forcedTurns }),
  }
}

function llamacppArguments({ model }: EngineStart, folder: string, port: number): string[] {
  const slots = 2
  const numbers = [port, models[model].contextTokens, slots].map(String)
  return [join(python, 'serve_llamacpp.py'), join(folder, 'model.gguf'), ...numbers]
}

async function freePort(): Promise<number> {
  const server = createServer()
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  const { port } = server.address() as AddressInfo
  await new Promise((resolve) => server.close(resolve))
  return port
}
