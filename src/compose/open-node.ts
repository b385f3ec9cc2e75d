import { extname, join, resolve } from 'node:path'
import type { Logger } from 'pino'
import { sendControlRequest } from '../gateway/send-control-request.ts'
import type { QuirkRule } from '../gateway/quirks/rule.ts'
import type { ContinuationMode } from '../gateway/sessions/sessions.ts'
import { systemClock } from '../lib/async/clock.ts'
import { allowModules } from '../lib/process/load-module.ts'
import { OwnAddresses } from '../lib/net/own-addresses.ts'
import { protectFromOutOfMemory } from '../lib/process/oom-score.ts'
import type { ArtifactPolicy } from '../node/session/artifacts.ts'
import { BuildProcesses } from '../node/build/build-processes.ts'
import { Checkouts } from '../node/sandbox/prepare/checkouts.ts'
import { findRunnable } from '../node/harness/find-runnable.ts'
import type { GitCredential } from '../node/sandbox/prepare/git-access.ts'
import { openHostGate, type HostAccess } from '../node/sandbox/host-access.ts'
import { SessionNode, type NodeBudgets, type SessionEvent } from '../node/node.ts'
import { assertDefaultRuntime, DEFAULT_RUNTIME, OpenRuntimes } from '../node/sandbox/open-runtimes.ts'
import { runtimes } from '../node/sandbox/runtimes/index.ts'
import { sessionsFolder } from '../node/session/session-folder.ts'
import type { StageWidths } from '../node/session/stages.ts'
import { machineMemory, defaultMemoryMb } from '../node/sandbox/default-memory.ts'
import type { PolicyGateway } from '../node/server-link/policy-link.ts'
import { findLabels } from '../node/server-link/find-labels.ts'
import { WarmImages } from '../node/server-link/warm-images.ts'
import { createBuilder } from '../trajectory/create-builder.ts'
import { createEvaluator } from '../trajectory/create-evaluator.ts'
import type { BuildSettings } from './build-process.ts'
import { harnessPlaces } from './harness-folders.ts'
import { openGateway, type GatewayLimits } from './open-gateway.ts'
import { USUAL_CONTEXT, type OpenEngine } from './open-engine.ts'
import { completeSettings } from './runtime-settings.ts'

export interface NodeChoice {
  nodeId: string
  /** Data folder of the node. */
  dir: string
  engine: OpenEngine
  /** Runtime of tasks that name none. Absent: bubblewrap, without which the node does not open. */
  runtime?: string
  runtimeSettings?: Readonly<Record<string, Readonly<Record<string, unknown>>>>
  widths: StageWidths
  budgets: NodeBudgets
  artifacts: ArtifactPolicy
  /** Credentials for the repositories of tasks; absent: none. */
  gitCredentials?: readonly GitCredential[]
  /** Modules that tasks may load. */
  modules: readonly string[]
  harnessDir?: string
  contextTokens?: number
  images: boolean
  continuation?: ContinuationMode
  sessionMemoryMb?: number
  /** Memory limit in MB of sandboxes whose task sets none. Absent: computed from the machine's memory and `widths`; 0: no limit. */
  sandboxMemoryMb?: number
  gateway?: GatewayLimits
  quirks?: readonly QuirkRule[]
  /**
   * Resources of this machine that tasks of a server may use; `all` if the users of the server own this machine. Results are
   * kept until a worker delivers them. Absent: the node works without a server, and its tasks may use everything.
   */
  member?: HostAccess | 'all'
  /** Addresses of Polar itself, which evaluators may not connect to; the node adds its gateway. */
  own?: OwnAddresses
  env: NodeJS.ProcessEnv
  logger: Logger
  /** When it aborts before the node is open, everything is closed and its reason is thrown. Ignored afterwards. */
  starting?: AbortSignal
  onEvent?: (event: SessionEvent) => void
}

export interface OpenNode extends AsyncDisposable {
  node: SessionNode
  /** The gateway process. */
  gateway: PolicyGateway & { readonly url: string }
  runtimes: OpenRuntimes
  /** The runtime of tasks that name none. */
  runtime: string
  /** Labels of the usable runtimes and the installed harnesses. Empty for a node without a server. */
  labels: readonly string[]
  /** Labels of the images and checkouts that are cached now. */
  affinity(): readonly string[]
}

const CHECKOUT_LIMITS = { maxBytes: 20 * 1024 ** 3, maxAgeMs: 30 * 24 * 3_600_000 }

/**
 * Opens a node of this machine. It decides which builder, evaluator, harness and runtime each session of a task gets. The
 * result owns the gateway process, the runtimes with their sandboxes, the build processes and the sessions; disposing it ends
 * them. The caller owns the engine.
 */
export async function openNode(choice: NodeChoice): Promise<OpenNode> {
  const { dir, engine, logger, env, own = new OwnAddresses() } = choice
  await using owned = new AsyncDisposableStack()
  protectFromOutOfMemory()
  const clock = systemClock
  const now = (): number => clock.now()
  // The gateway process starts while the rest opens.
  const gatewayStart = startGateway(choice)
  gatewayStart.catch(() => {})
  owned.defer(async () => (await gatewayStart.catch(() => undefined))?.[Symbol.asyncDispose]())
  const sandboxes = join(dir, 'sandboxes')
  const runtime = choice.runtime ?? DEFAULT_RUNTIME
  const modules = await allowModules(choice.modules.map((path) => resolve(path)))
  const checkouts = new Checkouts({
    dir: join(dir, 'checkouts'),
    limits: CHECKOUT_LIMITS,
    env,
    credentials: choice.gitCredentials ?? [],
    now,
  })
  const settingsOf = (kind: string) => completeSettings(kind, choice.runtimeSettings?.[kind] ?? {}, env)
  const { member, widths } = choice
  const opened = owned.use(
    new OpenRuntimes({
      dir: sandboxes,
      defaultRuntime: runtime,
      settingsOf,
      modules,
      prepare: { checkouts },
      allowsLocal: allowsLocal(member),
      sandboxes: widths.init + widths.run + widths.postrun,
      now,
    }),
  )
  if (choice.runtime === undefined) await assertDefaultRuntime(opened)
  choice.starting?.throwIfAborted()
  const gateway = await gatewayStart
  own.add(gateway.url)
  choice.starting?.throwIfAborted()
  const places = harnessPlaces(choice.harnessDir, env)
  const usualMemory = choice.sandboxMemoryMb ?? defaultMemoryMb(machineMemory(), widths)
  const gate =
    member === undefined || member === 'all'
      ? undefined
      : await openHostGate({ access: member, defaultRuntime: runtime, modules })
  const warmImages = new WarmImages()
  const settings: BuildSettings = { sessions: sessionsFolder(dir), modules }
  const program = new URL(`./build-process${extname(import.meta.url)}`, import.meta.url)
  const builds = owned.use(new BuildProcesses({ program, settings, clock }))
  const node = owned.use(
    await SessionNode.start({
      nodeId: choice.nodeId,
      dir,
      gateway,
      model: {
        name: engine.info.model,
        contextTokens: choice.contextTokens ?? engine.contextTokens ?? USUAL_CONTEXT,
        images: choice.images,
      },
      sendToEngine: (request, signal) => sendControlRequest(engine.upstream, request, signal),
      builds,
      openRuntime: (spec) => opened.open(spec),
      usedRuntimes: () => opened.used(),
      findHarness: (agent) => findRunnable(agent, { folders: places, modules }),
      createBuilder: (spec) => createBuilder(spec, { allowed: modules }),
      createEvaluator: (spec) =>
        createEvaluator(spec, {
          allowed: modules,
          // Without a gate, the user of the node also names the tasks, the secrets and the addresses.
          deps: {
            now,
            secret: (name) => (gate === undefined || gate.maySee(name) ? env[name] : undefined),
            mayCall: (url) => !own.hasUrl(url) && (gate === undefined || gate.mayCall(url)),
            mayConnect: (address, port) => !own.has(address, port),
          },
        }),
      host: gate,
      recovery: member === undefined ? 'again' : 'report',
      progressOf: (sessionId) => gateway.progressOf(sessionId),
      onPrepared: ({ task }) => warmImages.add(task),
      clock,
      outputBytes: choice.artifacts.fileMb * 1024 * 1024,
      ...(usualMemory === 0 ? {} : { defaultMemoryMb: usualMemory }),
      widths,
      budgets: choice.budgets,
      artifacts: choice.artifacts,
      logger,
      onEvent: choice.onEvent,
    }),
  )
  choice.starting?.throwIfAborted()
  const allowed = member === 'all' ? runtimes.kinds : member?.runtimes
  const labels =
    member === undefined
      ? []
      : await findLabels({ runtimes: opened, allowed, defaultRuntime: runtime, folders: places })
  const all = owned.move()
  return {
    node,
    gateway,
    runtimes: opened,
    runtime,
    labels,
    affinity: () => warmImages.keys(),
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  }
}

/**
 * Whether tasks may name `local`. Tasks of the node's own user may, unless the user is root: the agent would then run as root
 * without a sandbox. Tasks of a server may if the operator allows it.
 */
function allowsLocal(member: NodeChoice['member']): boolean {
  if (member === undefined || member === 'all') return process.getuid?.() !== 0
  return member.runtimes?.includes('local') === true
}

async function startGateway({ dir, engine, logger, ...choice }: NodeChoice): ReturnType<typeof openGateway> {
  return openGateway({
    count: 1,
    settings: {
      host: '127.0.0.1',
      dir: sessionsFolder(dir),
      durability: 'process',
      // The gateway process of a killed node stores its calls before it exits.
      lockWaitMs: 5000,
      continuation: choice.continuation,
      sessionMemoryMb: choice.sessionMemoryMb,
      quirks: choice.quirks ?? [],
      upstream: engine.configs,
      upstreamModule: engine.module,
      engine: engine.info,
    },
    limits: choice.gateway ?? {},
    logger,
  })
}
