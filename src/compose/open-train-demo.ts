import { extname } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { Logger } from 'pino'
import { request } from 'undici'
import type { Client } from '../client/client.ts'
import { RolloutError } from '../model/failure.ts'
import type { SessionResult } from '../model/session.ts'
import { toDemoTask } from '../train/demo-task.ts'
import type { HeadShape, LowRank } from '../train/low-rank.ts'
import type { TrainDeps } from '../train/train.ts'
import { toTrainSession } from '../train/train-session.ts'
import { openUp } from './open-up.ts'
import { loadTinyEngine, startTinyEngine } from './tiny-engine.ts'

export interface TrainDemoChoice {
  /** Data folder of the server and the node. Must be new: results of earlier tasks with the same ids would be returned. */
  data: string
  seed: number
  tasksPerStep: number
  /** Sessions of each task: the size of a group. */
  samples: number
  maxLag: number
  harnessDir?: string
  /** Absent: bubblewrap. */
  runtime?: string
  env: NodeJS.ProcessEnv
  logger: Logger
  /** Ends waiting for sessions. */
  signal?: AbortSignal
  /** Reports the part that is being started. */
  onPart?: (part: string) => void
  onSession?: (result: SessionResult) => void
}

export interface OpenTrainDemo extends AsyncDisposable {
  shape: HeadShape
  /** Numbers in [0, 1) that depend on the seed alone. */
  random: () => number
  /** `native` or `wasm`. */
  backend: string | undefined
  deps: Pick<TrainDeps, 'sample' | 'read' | 'load'>
}

/** Enough for the prompt and the answer of a session. */
const CONTEXT_TOKENS = 800

/**
 * Opens what `polar train-demo` trains with: the tiny engine, a server and a node as `polar up` opens them, and a second copy
 * of the frozen model, with which the trainer reads sampled tokens.
 */
export async function openTrainDemo(choice: TrainDemoChoice): Promise<OpenTrainDemo> {
  const { data, env, logger, onPart } = choice
  await using parts = new AsyncDisposableStack()
  onPart?.('engine')
  const engine = parts.use(await startTinyEngine({ maxModelLen: CONTEXT_TOKENS }))
  const { createModelPolicy, createRandom } = await loadTinyEngine()
  const model = parts.use(await createModelPolicy())
  onPart?.('server and node')
  const evaluator = modulePath('../train/format-evaluator')
  const { client } = parts.use(
    await openUp(
      {
        data,
        server: { port: 0 },
        engine: { url: engine.url, kind: 'vllm' },
        node: {
          modules: [evaluator],
          harness_dir: choice.harnessDir,
          runtime: choice.runtime,
          artifacts: { keep: 'failures' },
          uploads: { artifacts: 'none', call_log: 'none' },
        },
      },
      { env, logger },
    ),
  )
  const owned = parts.move()
  return {
    shape: model,
    random: createRandom(choice.seed),
    backend: model.backend,
    deps: {
      sample: (step, version) => sampleStep({ client, evaluator, ...choice }, step, version),
      read: (promptIds, ids) => model.score(promptIds, ids, { withPredictions: true }),
      load: (version, weights) => loadWeights(client, engine.url, version, weights),
    },
    [Symbol.asyncDispose]: () => owned.disposeAsync(),
  }
}

type SampleDeps = TrainDemoChoice & { client: Client; evaluator: string }

/** Submits the tasks of a step and waits for their sessions. Returns them in the order of their seeds. */
async function sampleStep(deps: SampleDeps, step: number, version: number) {
  const { client, tasksPerStep, signal } = deps
  const tasks = Array.from({ length: tasksPerStep }, (_, index) => toDemoTask({ ...deps, step, index, version }))
  await client.submitBatch({ body: { tasks }, signal })
  const results = (await Promise.all(tasks.map(({ task_id: id }) => collectResults(deps, id)))).flat()
  const sessions = results.flatMap((result) => toTrainSession(result) ?? [])
  if (sessions.length > 0) return sessions
  const failure = results.find((result) => result.failure != null)?.failure
  throw new RolloutError(
    failure?.code ?? 'internal.bug',
    failure?.message ?? `No session of step ${step} has a reward.`,
  )
}

async function collectResults({ client, onSession, signal }: SampleDeps, taskId: string): Promise<SessionResult[]> {
  const results: SessionResult[] = []
  for await (const result of client.streamTaskResults({
    params: { task_id: taskId },
    query: { follow: true },
    signal,
  })) {
    results.push(result)
    onSession?.(result)
  }
  const seedOf = ({ metadata }: SessionResult) => Number(metadata['eval_sampling_seed'])
  return results.toSorted((a, b) => seedOf(a) - seedOf(b))
}

/** Pauses all gateways until calls in flight have ended, changes the weights in the engine, names the version and resumes. */
async function loadWeights(client: Client, engineUrl: string, version: number, weights: LowRank): Promise<void> {
  await client.pausePolicy({ body: { mode: 'drain' } })
  const { rank, down, up } = weights
  const body = {
    update_info: { low_rank: { rank, down: toBase64(down), up: toBase64(up) } },
    weight_version: String(version),
  }
  const { statusCode, body: answer } = await request(`${engineUrl}/update_weights`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: JSON.stringify(body),
  })
  const text = await answer.text()
  if (statusCode !== 200) throw new RolloutError('upstream.failed', `The engine rejected the weights: ${text}`)
  await client.putPolicy({ body: { version, resume: true } })
}

function toBase64({ buffer, byteOffset, byteLength }: Float32Array): string {
  return Buffer.from(buffer, byteOffset, byteLength).toString('base64')
}

/** `.ts` from source, `.js` after the build. */
function modulePath(module: string): string {
  return fileURLToPath(new URL(`${module}${extname(import.meta.url)}`, import.meta.url))
}
