import { resolve } from 'node:path'
import type { Logger } from 'pino'
import { createClient } from '../client/client.ts'
import type { Config } from '../config/config.ts'
import { loadSecret } from '../config/load-secret.ts'
import { defaultNodeId } from '../config/node-section.ts'
import { systemClock } from '../lib/async/clock.ts'
import { OwnAddresses } from '../lib/net/own-addresses.ts'
import type { HostAccess } from '../node/sandbox/host-access.ts'
import type { SessionEvent } from '../node/node.ts'
import { runtimes } from '../node/sandbox/runtimes/index.ts'
import { adoptFinished } from '../node/session/adopt-finished.ts'
import { StageWidths } from '../node/session/stages.ts'
import { Worker } from '../node/worker.ts'
import { nodeFolder } from './data-folder.ts'
import { loadQuirks } from './load-quirks.ts'
import { openEngine, warningsOf } from './open-engine.ts'
import { openNode, type OpenNode } from './open-node.ts'
import { readGitCredentials, readRuntimeSettings } from './runtime-settings.ts'
import { readVersion } from './version.ts'
import { assertWritable } from './writable.ts'

export interface WorkerChoice {
  config: Config
  server: { url: string; token: string | undefined }
  /** Tasks may name whatever is on this machine: who submits them is who started it. */
  isOwnMachine: boolean
  /** Addresses of Polar itself, which evaluators never reach; the node adds those of its gateway and its server. */
  own?: OwnAddresses
  env: NodeJS.ProcessEnv
  logger: Logger
  /** Aborted before it has joined: what was opened is closed, and the signal’s reason thrown. */
  signal: AbortSignal
  onEvent?: (event: SessionEvent) => void
  /** What is being started now, for people who wait. */
  onStep?: (what: string) => void
  /** Data folders that this node had before, and whose finished sessions it delivers. */
  adopt?: readonly string[]
}

export interface OpenWorker extends AsyncDisposable {
  nodeId: string
  worker: Worker
  opened: OpenNode
  widths: StageWidths
  /** For people: what of the engine is not as it might be. */
  warnings: readonly string[]
}

/** A node with its gateway and engine, as the configuration has it, that has joined its server. */
export async function openWorker(choice: WorkerChoice): Promise<OpenWorker> {
  const { config, env, logger, own = new OwnAddresses() } = choice
  const { node: section, engine: about } = config
  const nodeId = section.id ?? defaultNodeId()
  const dir = nodeFolder(config.data, nodeId)
  await assertWritable(dir, '--dir')
  const engineKey = await loadSecret('engine.key', { file: about.key_file, env: about.key_env }, env)
  const quirks = await loadQuirks(about.quirks.join(','))
  const runtimeSettings = await readRuntimeSettings(config, env)
  const gitCredentials = await readGitCredentials(config, env)
  const widths = StageWidths.parse({ ...section.widths, backlog: section.widths.backlog ?? 2 * section.widths.postrun })
  const step = (what: string): void => {
    choice.signal.throwIfAborted()
    choice.onStep?.(what)
  }
  await using owned = new AsyncDisposableStack()
  step('engine')
  const engine = owned.use(
    await openEngine({
      url: about.url,
      kind: about.kind,
      model: about.model,
      script: about.script,
      key: engineKey,
      signal: choice.signal,
    }),
  )
  step('gateway and sandboxes')
  own.add(choice.server.url)
  const earlier = (choice.adopt ?? []).map((data) => nodeFolder(resolve(data), nodeId))
  await adoptFinished(earlier, dir, logger)
  const opened = owned.use(
    await openNode({
      nodeId,
      dir,
      engine,
      ...(section.runtime === undefined ? {} : { runtime: section.runtime }),
      runtimeSettings,
      gitCredentials,
      widths,
      budgets: { init: section.budgets.init_seconds, evaluate: section.budgets.evaluate_seconds },
      artifacts: {
        keep: section.artifacts.keep,
        fileMb: section.artifacts.file_mb,
        totalMb: section.artifacts.total_mb,
      },
      modules: section.modules,
      ...(section.harness_dir === undefined ? {} : { harnessDir: section.harness_dir }),
      ...(about.context === undefined ? {} : { contextTokens: about.context }),
      images: about.images,
      continuation: about.continuation,
      sessionMemoryMb: about.session_memory_mb,
      ...(section.sandbox_memory_mb === undefined ? {} : { sandboxMemoryMb: section.sandbox_memory_mb }),
      gateway: {
        ...(section.gateway.heap_mb === undefined ? {} : { heapMb: section.gateway.heap_mb }),
        sessionBodyMb: section.gateway.session_body_mb,
        ...(section.gateway.total_body_mb === undefined ? {} : { totalBodyMb: section.gateway.total_body_mb }),
        sessionLogMb: section.gateway.session_log_mb,
        sessionCalls: section.gateway.session_calls,
      },
      quirks,
      member: toAccess(config, choice.isOwnMachine),
      own,
      env,
      logger,
      starting: choice.signal,
      ...(choice.onEvent === undefined ? {} : { onEvent: choice.onEvent }),
    }),
  )
  step('joining the server')
  const worker = owned.use(
    await Worker.start(
      {
        client: createClient({
          baseUrl: choice.server.url,
          ...(choice.server.token === undefined ? {} : { token: choice.server.token }),
        }),
        node: opened.node,
        nodeId,
        registration: {
          gateway_url: opened.gateway.url,
          max_init_workers: widths.init,
          max_run_workers: widths.run,
          max_postrun_workers: widths.postrun,
          heartbeat_interval_seconds: 30,
        },
        labels: [...new Set([...opened.labels, ...section.labels])],
        affinity: () => opened.affinity(),
        version: readVersion(),
        uploads: {
          artifacts: section.uploads.artifacts,
          callLog: section.uploads.call_log,
          atOnce: section.uploads.at_once,
        },
        retention: {
          sessions: section.retention.sessions,
          totalMb: section.retention.total_mb,
          hours: section.retention.hours,
        },
        minFreeMb: section.min_free_mb,
        ...(section.drain_seconds === undefined ? {} : { drainGraceMs: section.drain_seconds * 1000 }),
        logger,
        clock: systemClock,
      },
      choice.signal,
    ),
  )
  const all = owned.move()
  return {
    nodeId,
    worker,
    opened,
    widths,
    warnings: warningsOf(engine),
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  }
}

/** On one's own machine everything is one's own, unless one says otherwise. */
function toAccess({ node: { allow } }: Config, isOwnMachine: boolean): HostAccess {
  if (allow === undefined && isOwnMachine) {
    // As root, an agent gets no `local` that only its task asked for.
    const kinds = process.getuid?.() === 0 ? {} : { runtimes: [...runtimes.kinds] }
    return { paths: ['/'], hosts: ['*'], secrets: ['*'], ...kinds }
  }
  const { paths = [], hosts = [], env = [], runtimes: kinds } = allow ?? {}
  return { paths, hosts, secrets: env, ...(kinds === undefined ? {} : { runtimes: kinds }) }
}
