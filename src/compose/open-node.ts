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
  /** Everything it keeps. */
  dir: string
  engine: OpenEngine
  /** Of tasks that name none. Absent: bubblewrap, and without it the node does not open. */
  runtime?: string
  runtimeSettings?: Readonly<Record<string, Readonly<Record<string, unknown>>>>
  widths: StageWidths
  budgets: NodeBudgets
  artifacts: ArtifactPolicy
  /** For repositories that tasks check out; absent: none. */
  gitCredentials?: readonly GitCredential[]
  /** Files whose code is trusted. */
  modules: readonly string[]
  harnessDir?: string
  contextTokens?: number
  images: boolean
  continuation?: ContinuationMode
  sessionMemoryMb?: number
  /** Memory of a sandbox whose task names none, in MB; absent: from the machine's memory and `widths`; 0: not limited. */
  sandboxMemoryMb?: number
  gateway?: GatewayLimits
  quirks?: readonly QuirkRule[]
  /**
   * It works for a server: tasks are others', and may have of this machine what is said here; results are kept for a
   * worker to deliver. `all`: whoever submits tasks owns this machine. Absent: it is alone, and so does whoever runs it.
   */
  member?: HostAccess | 'all'
  /** Addresses of Polar itself, which evaluators never reach; the gateway's is added. */
  own?: OwnAddresses
  env: NodeJS.ProcessEnv
  logger: Logger
  /** Aborted before it is open: what was opened is closed, and the signal’s reason thrown. Later it says nothing. */
  starting?: AbortSignal
  onEvent?: (event: SessionEvent) => void
}

export interface OpenNode extends AsyncDisposable {
  node: SessionNode
  /** Where the gateway process listens. */
  gateway: { readonly url: string }
  runtimes: OpenRuntimes
  /** The runtime of tasks that name none. */
  runtime: string
  /** What it has, as labels: kinds of sandbox that work here, harnesses that are installed. Empty for one that is alone. */
  labels: readonly string[]
  /** What is warm here now, as labels. */
  affinity(): readonly string[]
}

const CHECKOUT_LIMITS = { maxBytes: 20 * 1024 ** 3, maxAgeMs: 30 * 24 * 3_600_000 }

/** A node with a gateway process of its own, as one machine needs it. */
export async function openNode(choice: NodeChoice): Promise<OpenNode> {
  const { dir, engine, logger, env, own = new OwnAddresses() } = choice
  await using owned = new AsyncDisposableStack()
  protectFromOutOfMemory()
  const clock = systemClock
  const now = (): number => clock.now()
  // Starts while the rest is being opened.
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
  const warmth = new WarmImages()
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
          // Whoever runs this alone names the tasks, the secrets and the addresses: they are all theirs.
          deps: {
            now,
            secret: (name) => (gate === undefined || gate.maySee(name) ? env[name] : undefined),
            mayCall: (url) => !own.hasUrl(url) && (gate === undefined || gate.mayCall(url)),
            mayConnect: (address, port) => !own.has(address, port),
          },
        }),
      ...(gate === undefined ? {} : { host: gate }),
      recovery: member === undefined ? 'again' : 'report',
      progressOf: (sessionId) => gateway.progressOf(sessionId),
      onPrepared: ({ task }) => warmth.add(task),
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
    affinity: () => warmth.keys(),
    [Symbol.asyncDispose]: () => all.disposeAsync(),
  }
}

/**
 * Tasks of whoever runs the node may ask for `local`, except as root: an agent without a sandbox would then be root, which
 * nobody decided. Tasks of others may where the operator listed it.
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
      // The gateway process of an earlier node that was killed stores what it has before it ends.
      lockWaitMs: 5000,
      ...(choice.continuation === undefined ? {} : { continuation: choice.continuation }),
      ...(choice.sessionMemoryMb === undefined ? {} : { sessionMemoryMb: choice.sessionMemoryMb }),
      quirks: choice.quirks ?? [],
      upstream: engine.configs,
      upstreamModule: engine.module,
      engine: engine.info,
    },
    limits: choice.gateway ?? {},
    logger,
  })
}
