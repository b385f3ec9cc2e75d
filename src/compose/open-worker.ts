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
  /** The user of the server is the user of this machine, so tasks may use all its resources unless `node.allow` is set. */
  isOwnMachine: boolean
  /** Addresses of Polar itself, which evaluators may not connect to; the node adds its gateway and its server. */
  own?: OwnAddresses
  env: NodeJS.ProcessEnv
  logger: Logger
  /** When it aborts before the node has joined, everything is closed and its reason is thrown. */
  signal: AbortSignal
  onEvent?: (event: SessionEvent) => void
  /** Reports the part that is being started. */
  onStep?: (part: string) => void
  /** Earlier data folders of this node, whose finished sessions it delivers. */
  adopt?: readonly string[]
}

export interface OpenWorker extends AsyncDisposable {
  nodeId: string
  worker: Worker
  opened: OpenNode
  widths: StageWidths
  /** Findings about the engine that prevent exact capture or continuation. */
  warnings: readonly string[]
}

/**
 * Opens the configured node with its gateway and engine, and joins the server. The result owns all of them; disposing it ends
 * the sessions, which the server then leases to other nodes.
 */
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
  const step = (part: string): void => {
    choice.signal.throwIfAborted()
    choice.onStep?.(part)
  }
  await using owned = new AsyncDisposableStack()
  step('engine')
  const engine = owned.use(
    await openEngine({
      url: about.url,
      kind: about.kind,
      module: about.module,
      model: about.model,
      script: about.script,
      key: engineKey,
      waitMs: about.wait_seconds * 1000,
      signal: choice.signal,
      onWait: (sentence) => {
        choice.onStep?.(`engine (${sentence})`)
        logger.warn({ engine: sentence }, 'waiting for the engine')
      },
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
      runtime: section.runtime,
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
      harnessDir: section.harness_dir,
      contextTokens: about.context,
      images: about.images,
      continuation: about.continuation,
      sessionMemoryMb: about.session_memory_mb,
      sandboxMemoryMb: section.sandbox_memory_mb,
      gateway: {
        heapMb: section.gateway.heap_mb,
        sessionBodyMb: section.gateway.session_body_mb,
        totalBodyMb: section.gateway.total_body_mb,
        sessionLogMb: section.gateway.session_log_mb,
        sessionCalls: section.gateway.session_calls,
      },
      quirks,
      member: toAccess(config, choice.isOwnMachine),
      own,
      env,
      logger,
      starting: choice.signal,
      onEvent: choice.onEvent,
    }),
  )
  step('joining the server')
  const worker = owned.use(
    await Worker.start(
      {
        client: createClient({ baseUrl: choice.server.url, token: choice.server.token }),
        node: opened.node,
        gateway: opened.gateway,
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
        drainGraceMs: section.drain_seconds === undefined ? undefined : section.drain_seconds * 1000,
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
    warnings: warningsOf(engine, about.continuation),
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  }
}

/** Without `node.allow`, tasks may use all resources of their own user's machine, and none of another machine. */
function toAccess({ node: { allow } }: Config, isOwnMachine: boolean): HostAccess {
  if (allow === undefined && isOwnMachine) {
    // As root, a task cannot choose `local`, which would run the agent as root without a sandbox.
    const kinds = process.getuid?.() === 0 ? undefined : [...runtimes.kinds]
    return { paths: ['/'], hosts: ['*'], secrets: ['*'], runtimes: kinds }
  }
  const { paths = [], hosts = [], env = [], runtimes: kinds } = allow ?? {}
  return { paths, hosts, secrets: env, runtimes: kinds }
}
