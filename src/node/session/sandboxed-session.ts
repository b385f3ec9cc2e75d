import { mkdir, rm, statfs } from 'node:fs/promises'
import type { Socket } from 'node:net'
import { dirname, join, posix } from 'node:path'
import type { SessionAccess, SessionOptions } from '../../gateway/gateway.ts'
import type { MonotonicClock } from '../../lib/async/clock.ts'
import type { Slots } from '../../lib/async/slots.ts'
import { needsControl, type FailurePhase } from '../../model/attribution.ts'
import type { ChatMessage } from '../../model/chat-message.ts'
import { RolloutError, toFailure, type Failure } from '../../model/failure.ts'
import type { EvalResult } from '../../model/reward.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { AgentEnding } from '../../model/session-outcome.ts'
import type { SessionTiming } from '../../model/session.ts'
import type { AgentSpec, PrepareAction, SamplingSpec, TaskRequest } from '../../model/task.ts'
import { NO_NETWORK_NOTICE, noticesOf } from '../../model/task-notices.ts'
import type { TranscriptEntry } from '../../model/transcript.ts'
import type { Builder } from '../../trajectory/builders/builder.ts'
import type { Evaluator } from '../../trajectory/evaluators/evaluator.ts'
import type { Artifacts } from './artifacts.ts'
import type { BuildFacts, LoadedSession, RecordHead, SessionBuilds } from '../build/session-build.ts'
import { controlEngine, type AskEngine } from './engine-control.ts'
import { SessionGrading, type GradedSession } from './grade-session.ts'
import { Graders } from './graders.ts'
import type { ProgramStart } from '../harness/install/harness-bundle.ts'
import { SANDBOX_GONE, toEnd } from './harness-end.ts'
import { planLaunch, type LaunchPlan } from '../harness/harness-launch.ts'
import { keepHarnessLogs } from './harness-logs.ts'
import { assertVersion } from '../harness/assert-version.ts'
import type { Harness } from '../harness/presets/harness.ts'
import { lastWords } from './last-words.ts'
import { launchInSandbox } from '../harness/launch-in-sandbox.ts'
import type { HostGate } from '../sandbox/host-access.ts'
import type { SandboxLeases } from '../sandbox/keep-alive.ts'
import type { AgentRun, BuildOutcome, SessionWork } from './run-session.ts'
import type { RunTimes } from './run-times.ts'
import type { Execution, ExecResult, Mount, Runtime, Sandbox } from '../sandbox/runtimes/runtime.ts'
import { toSandboxSpec } from '../sandbox/prepare/sandbox-spec.ts'
import { identityVariables } from './session-environment.ts'
import type { StoredGrade } from './session-folder.ts'
import type { StartOptions, WarmStarts } from '../sandbox/prepare/warm-start.ts'
import { within } from './time-limit.ts'

/** A harness, and what of it has to be brought into a sandbox. */
export interface RunnableHarness {
  harness: Harness
  /** Absent: it is in the sandbox already, and starts by its name. */
  bundle?: { folder: string; startAt(path: string): ProgramStart }
  /** What the program in the sandbox must say its version is; absent: anything. */
  version?: string
}

/** A kind of sandbox, and those of it that were prepared before. */
export interface OpenRuntime {
  runtime: Runtime
  starts: WarmStarts
}

/** Everything a node has that a session needs. */
export interface WorkDeps {
  nodeId: string
  gateway: SessionGateway
  model: { name: string; contextTokens: number; images: boolean }
  /** Sends one request to the engine, beside all sessions; rejects when the engine does. */
  askEngine: AskEngine
  /** Loads what the gateway recorded, and builds it. */
  builds: SessionBuilds
  openRuntime(spec: TaskRequest['runtime']): Promise<OpenRuntime>
  findHarness(agent: AgentSpec): Promise<RunnableHarness>
  /** To find what is wrong with a task before its agent runs. */
  createBuilder(spec: TaskRequest['builder']): Promise<Builder>
  createEvaluator(spec: NonNullable<TaskRequest['evaluator']>): Promise<Evaluator>
  /** Whose tasks are others': what they may have of this machine. Absent: whoever runs them may have all of it. */
  host?: Pick<HostGate, 'admit' | 'assertGradable'>
  clock: MonotonicClock
  leases: SandboxLeases
  runTimes: RunTimes
  startTimes: RunTimes
  /** Graders that may be made before they are wanted, of all sessions. */
  standby: Slots
  /** Where what was taken out of a sandbox lies while it is graded. No sandbox sees it. */
  scratch: string
  /** Of each of its agent's stdout and stderr. */
  outputBytes: number
  /** Memory of a sandbox whose task names none, in MB; absent: not limited. */
  defaultMemoryMb?: number
}

/** The part of a gateway that a node has to do with. */
export interface SessionGateway {
  openSession(options: SessionOptions): Promise<SessionAccess>
  closeSession(id: string): Promise<Failure | undefined>
  /** The socket is paused and unread. */
  accept(sessionId: string, socket: Socket): void
}

/** On the sandbox's own loopback, so it is in nobody's way. */
const DOOR_PORT = 8080
const BUNDLE = '/polar/harness'
const LOGS_MS = 30_000
const LOG_FULL =
  'The call log of this session reached its limit (node.gateway.session_log_mb), so the gateway refused its later model calls.'

/** What a session is made of, once all the names in its task have been looked up. */
interface Resolved {
  runtime: Runtime
  starts: WarmStarts
  runnable: RunnableHarness
  evaluator: Evaluator | undefined
}

/** A session that was built, and the process that has its samples. */
export interface SessionBuild {
  loaded: LoadedSession
  facts: BuildFacts
}

/** One session with real sandboxes, a real harness and a real gateway. */
export class RealWork implements SessionWork<SessionBuild> {
  readonly #order: SessionOrder
  readonly #deps: WorkDeps
  readonly #artifacts: Artifacts
  readonly #keepGrade: (grade: StoredGrade) => Promise<void>
  /** What has to be undone, the newest first. */
  readonly #owned = new AsyncDisposableStack()
  readonly #over = new AbortController()
  readonly timing: SessionTiming = {}
  readonly warnings: string[] = []
  #resolved: Resolved | undefined
  #access: SessionAccess | undefined
  #logFailure: Failure | undefined
  #sandbox: Sandbox | undefined
  #graders: Graders | undefined
  #grading: SessionGrading | undefined
  #ending: AgentEnding | undefined
  #loaded: LoadedSession | undefined

  constructor(
    order: SessionOrder,
    deps: WorkDeps,
    { artifacts, keepGrade }: { artifacts: Artifacts; keepGrade: (grade: StoredGrade) => Promise<void> },
  ) {
    this.#order = order
    this.#deps = deps
    this.#artifacts = artifacts
    this.#keepGrade = keepGrade
  }

  async prepare(signal: AbortSignal): Promise<void> {
    const { task, sessionId } = this.#order
    const { gateway, clock, startTimes } = this.#deps
    const resolved = await this.#resolve()
    const { runtime, starts, runnable } = resolved
    this.#access = await gateway.openSession({
      id: sessionId,
      origin: originOf(this.#order, runnable.harness, runtime.kind),
      ...(task.sampling == null ? {} : { sampling: toSampling(task.sampling) }),
    })
    const spec = toSandboxSpec(this.#order, runtime, {
      ...this.#sandboxParts('agent'),
      mounts: bundleMounts(runnable, runtime),
      socket: { port: DOOR_PORT, isPaused: true, accept: (socket) => gateway.accept(sessionId, socket) },
    })
    const startedAt = clock.monotonic()
    if (spec.network.kind === 'none') this.warnings.push(...noticesOf(task))
    const either = AbortSignal.any([signal, this.#over.signal])
    const { actions, options } = this.#steps(task.runtime?.prepare ?? [])
    const { sandbox } = await this.#own(this.#hinted(starts.start(spec, actions, either, options)))
    startTimes.add(task.task_id, clock.monotonic() - startedAt)
    this.#sandbox = sandbox
    if (resolved.evaluator?.needs.agentState) this.#owned.defer(() => runtime.removeSnapshot?.(this.#stateName()))
    this.#graders = this.#owned.use(this.#createGraders(resolved))
  }

  /** The steps of a sandbox, and what their commands find in the environment. */
  #steps(prepare: readonly PrepareAction[]): { actions: readonly PrepareAction[]; options: StartOptions } {
    const { task } = this.#order
    const { direct_exec_init_command: init, backend } = task.runtime ?? {}
    const env = identityVariables(this.#order)
    if (init == null || backend !== 'apptainer') return { actions: prepare, options: { env } }
    const first: PrepareAction = { type: 'exec', command: init, max_attempts: 1, retry_backoff_seconds: 0 }
    return { actions: [first, ...prepare], options: { env, startsProcesses: true } }
  }

  /** A step that fails in a sandbox without a network may have failed for want of one. */
  async #hinted<T>(started: Promise<T>): Promise<T> {
    return started.catch((error: unknown) => {
      const isHinted = error instanceof RolloutError && error.code === 'runtime.prepare-failed'
      if (!isHinted || !this.warnings.includes(NO_NETWORK_NOTICE)) throw error
      throw new RolloutError(error.code, `${error.message}\n${NO_NETWORK_NOTICE}`, { cause: error })
    })
  }

  async #resolve(): Promise<Resolved> {
    const { task } = this.#order
    const deps = this.#deps
    await deps.host?.admit(task)
    await deps.createBuilder(task.builder)
    const evaluator = task.evaluator == null ? undefined : await deps.createEvaluator(task.evaluator)
    await evaluator?.check?.(async (source) => deps.host?.assertGradable(source, this.#submission()))
    const runnable = await deps.findHarness(task.agent)
    const opened = await deps.openRuntime(task.runtime)
    return (this.#resolved = { ...opened, runnable, evaluator })
  }

  /** However long it takes to come up, it comes down with the session. */
  async #own<T extends { sandbox: Sandbox }>(started: Promise<T>): Promise<T> {
    this.#owned.defer(async () => {
      const result = await started.catch(() => undefined)
      await result?.sandbox.stop()
    })
    const result = await started
    this.#hold(result.sandbox)
    return result
  }

  /** One that came up after the end goes at once, so nobody has to ask for it. */
  #hold(sandbox: Sandbox): Sandbox {
    if (!this.#owned.disposed) this.#owned.use(toAsync(this.#deps.leases.add(sandbox)))
    return sandbox
  }

  #createGraders({ runtime, starts, evaluator }: Resolved): Graders {
    const { task } = this.#order
    const { clock, standby } = this.#deps
    const spec = () => toSandboxSpec(this.#order, runtime, { ...this.#sandboxParts('grader'), mounts: [] })
    const start = async (prepare: readonly PrepareAction[], signal: AbortSignal): Promise<Sandbox> => {
      const { actions, options } = this.#steps(prepare)
      return this.#hold((await starts.start(spec(), actions, signal, options)).sandbox)
    }
    const { prepare = [], eval_prepare: evalPrepare } = task.runtime ?? {}
    return new Graders({
      startClean: (signal) => start(evalPrepare ?? prepare, signal),
      startUntouched: (signal) => start(prepare, signal),
      startFromAgent: evaluator?.needs.agentState
        ? async (signal) => this.#hold(await runtime.start({ ...spec(), snapshot: this.#stateName() }, signal))
        : undefined,
      standby,
      now: () => clock.monotonic(),
    })
  }

  #sandboxParts(role: 'agent' | 'grader') {
    const deps = this.#deps
    return {
      role,
      nodeId: deps.nodeId,
      ...(deps.defaultMemoryMb === undefined ? {} : { defaultMemoryMb: deps.defaultMemoryMb }),
      now: deps.clock.now(),
    }
  }

  async run(signal: AbortSignal): Promise<AgentRun> {
    const { runnable } = this.#resolved!
    const { clock, runTimes, outputBytes } = this.#deps
    const stopPrewarm = this.#planPrewarm()
    const startedAt = clock.monotonic()
    try {
      const plan = this.#plan()
      await assertVersion(this.#sandbox!, runnable, plan)
      const execution = await launchInSandbox(this.#sandbox!, plan, { outputBytes }, signal)
      const result = await untilEnded(execution, signal)
      await this.#keepOutput(execution, result)
      const message = await lastWords(execution, outputBytes)
      const isGone =
        result.exitCode === null && !signal.aborted && !result.isOutOfMemory && !(await isAlive(this.#sandbox!))
      return {
        exitCode: result.exitCode,
        isOutOfMemory: result.isOutOfMemory ?? false,
        ...(isGone ? SANDBOX_GONE : toEnd(runnable.harness, result.exitCode, message)),
        message,
      }
    } finally {
      stopPrewarm()
      runTimes.add(this.#order.task.task_id, clock.monotonic() - startedAt)
    }
  }

  #plan(): LaunchPlan {
    const { runtime, runnable } = this.#resolved!
    const { task, sessionId } = this.#order
    const sandbox = this.#sandbox!
    const { harness, bundle } = runnable
    const isApart = runtime.capabilities.isolatesFiles
    const baseUrl = `http://127.0.0.1:${sandbox.socketPort}/s/${sessionId}`
    return planLaunch(
      harness,
      {
        ...(bundle === undefined ? {} : { start: bundle.startAt(isApart ? BUNDLE : bundle.folder) }),
        home: this.#home(),
        workdir: sandbox.workdir,
        // All else that the sandbox has, such as PATH, its commands find by themselves.
        env: { ...identityVariables(this.#order), GOOGLE_API_URL: baseUrl },
      },
      {
        sessionId,
        baseUrl,
        key: this.#access!.key,
        model: task.agent.model_name ?? this.#deps.model.name,
        contextTokens: this.#deps.model.contextTokens,
        images: this.#deps.model.images,
        instruction: task.instruction,
        agent: task.agent,
      },
    )
  }

  /** Not in the workdir: what a harness keeps for itself is no part of its work. */
  #home(): string {
    const { isolatesFiles } = this.#resolved!.runtime.capabilities
    return isolatesFiles ? '/tmp/polar-home' : posix.join(dirname(this.#sandbox!.workdir), 'harness-home')
  }

  /**
   * A grader's sandbox is begun when the agent is likely to need no longer than making one takes. Nothing is known of the
   * first sessions of a task, and so nothing is made early for them.
   */
  #planPrewarm(): () => void {
    const { clock, runTimes, startTimes } = this.#deps
    const { task_id: key } = this.#order.task
    const expected = this.#resolved!.evaluator?.needs.sandbox ? runTimes.quantile(key, 0.5) : undefined
    if (expected === undefined) return () => {}
    const ahead = startTimes.quantile(key, 0.5) ?? 0
    return clock.after(Math.max(0, expected - ahead), () => this.#graders?.prewarm())
  }

  async #keepOutput(execution: Execution, { stdoutBytes, stderrBytes }: ExecResult): Promise<void> {
    await this.#artifacts.copy('agent/stdout.log', execution.output('stdout'), { totalBytes: stdoutBytes })
    await this.#artifacts.copy('agent/stderr.log', execution.output('stderr'), { totalBytes: stderrBytes })
  }

  async seal(): Promise<void> {
    this.#logFailure = await this.#deps.gateway.closeSession(this.#order.sessionId)
    this.#access = undefined
  }

  async build(): Promise<BuildOutcome<SessionBuild>> {
    const { builds, clock } = this.#deps
    const { task, sessionId } = this.#order
    await this.#keepLogs()
    const startedAt = clock.monotonic()
    const loaded = (this.#loaded = await builds.load(sessionId))
    const { mcpToolPrefix } = this.#resolved!.runnable.harness
    const servers = mcpToolPrefix === undefined ? [] : task.agent.mcp_servers.map(({ name }) => name)
    const toolPrefixes = servers.map((name) => mcpToolPrefix?.(name) ?? '')
    const facts = await loaded.build({ builder: task.builder, training: task.training, toolPrefixes })
    this.timing.build_ms = clock.monotonic() - startedAt
    this.warnings.push(...missingServers(servers, facts))
    if (facts.isLogFull) this.warnings.push(LOG_FULL)
    const incomplete = this.#logFailure ?? whyIncomplete(loaded.head)
    const { answers, lastFailure } = facts
    const engineControl =
      lastFailure !== undefined && needsControl(lastFailure.code, { phase: 'call', answers })
        ? await this.#controlEngine(loaded)
        : undefined
    return {
      built: { loaded, facts },
      answers,
      ...(lastFailure === undefined ? {} : { lastFailure }),
      ...(engineControl === undefined ? {} : { engineControl }),
      ...(incomplete === undefined ? {} : { incomplete }),
    }
  }

  /** Whether the engine still fails for the request of the last call while it answers others. */
  async #controlEngine(loaded: LoadedSession): Promise<'passed' | 'failed'> {
    const { askEngine, clock, model } = this.#deps
    const request = await loaded.readLastRequest()
    if (request === undefined) return 'failed'
    return controlEngine(request, { ask: askEngine, model: model.name, clock, signal: this.#over.signal })
  }

  /** When the samples are not needed any more: after the result is written. */
  async releaseBuild(): Promise<void> {
    await this.#loaded?.[Symbol.asyncDispose]()
  }

  /** Only now: the key that is in them opens nothing any more. Without them a session is worth as much. */
  async #keepLogs(): Promise<void> {
    const { clock, scratch } = this.#deps
    const folders = this.#resolved!.runnable.harness.logFolders ?? []
    if (folders.length === 0 || !this.#artifacts.areKept) return
    const logs = {
      sandbox: this.#sandbox!,
      home: this.#home(),
      folders,
      artifacts: this.#artifacts,
      scratch: join(scratch, `${this.#order.sessionId}-logs`),
    }
    const limit = { ms: LOGS_MS, code: 'runtime.copy-failed', message: 'Keeping the logs took too long.' } as const
    await within(limit, { clock, signal: this.#over.signal }, (signal) => keepHarnessLogs(logs, signal)).catch(() => {})
  }

  async grade(build: SessionBuild, ending: AgentEnding, signal: AbortSignal): Promise<EvalResult | undefined> {
    if (this.#resolved!.evaluator === undefined) return undefined
    const { clock } = this.#deps
    this.#ending = ending
    this.#grading ??= await this.#openGrading(this.#resolved!.evaluator, build, ending)
    const startedAt = clock.monotonic()
    try {
      const grade = await this.#grading.grade(signal)
      await this.#keepGrade({ attempt: this.#order.attempt, ending, grade })
      return grade
    } finally {
      this.timing.eval_ms = (this.timing.eval_ms ?? 0) + clock.monotonic() - startedAt
      const times = this.#graders!.prewarmTimes
      if (times !== undefined) {
        this.timing.eval_prewarm_idle_ms = times.idleMs
        this.timing.eval_prewarm_saved_ms = times.savedMs
      }
    }
  }

  async #openGrading(evaluator: Evaluator, build: SessionBuild, ending: AgentEnding): Promise<SessionGrading> {
    const { task } = this.#order
    const { host } = this.#deps
    const submission = this.#submission()
    await mkdir(submission, { recursive: true, mode: 0o700 })
    this.#owned.defer(() => rm(submission, { recursive: true, force: true }))
    return new SessionGrading({
      evaluator,
      agent: this.#sandbox!,
      snapshot: this.#stateName(),
      graders: this.#graders!,
      built: await toGraded(build, task),
      ending,
      task,
      submission,
      assertUpload: async (source) => host?.assertGradable(source, submission),
      artifacts: this.#artifacts,
      freeBytes: async () => {
        const { bavail, bsize } = await statfs(submission)
        return bavail * bsize
      },
    })
  }

  gradingPhase(): FailurePhase {
    return this.#grading?.phase ?? 'start-grader'
  }

  async control(failure: Failure, signal: AbortSignal): Promise<void> {
    await this.#grading!.control(failure, signal)
  }

  async refuse(failure: Failure): Promise<EvalResult> {
    const grade = await this.#grading!.refuse(failure)
    await this.#keepGrade({ attempt: this.#order.attempt, ending: this.#ending!, grade })
    return grade
  }

  /** Holds what was taken out of the agent's sandbox. */
  #submission(): string {
    return join(this.#deps.scratch, this.#order.sessionId)
  }

  #stateName(): string {
    return `agent-${this.#order.sessionId}-${this.#order.attempt}`
  }

  async tearDown(): Promise<void> {
    this.#over.abort(new Error('The session is over.'))
    if (this.#access !== undefined) this.#owned.defer(() => this.seal())
    await this.#owned.disposeAsync()
  }
}

function originOf({ task, attempt, runId }: SessionOrder, harness: Harness, runtime: string): Record<string, unknown> {
  return {
    task: task.task_id,
    ...(runId === undefined ? {} : { run: runId }),
    attempt,
    runtime,
    harness: { name: harness.name, ...(harness.package === undefined ? {} : { version: harness.package.version }) },
  }
}

function bundleMounts({ bundle }: RunnableHarness, { capabilities }: Runtime): Mount[] {
  if (bundle === undefined) return []
  const target = capabilities.isolatesFiles ? BUNDLE : bundle.folder
  return [{ source: bundle.folder, target, isReadOnly: true }]
}

function toSampling(spec: SamplingSpec): NonNullable<SessionOptions['sampling']> {
  const { temperature, top_p, top_k, min_p, seed, max_tokens, presence_penalty, frequency_penalty } = spec
  return {
    ...(temperature == null ? {} : { temperature }),
    ...(top_p == null ? {} : { topP: top_p }),
    ...(top_k == null ? {} : { topK: top_k }),
    ...(min_p == null ? {} : { minP: min_p }),
    ...(seed == null ? {} : { seed }),
    ...(max_tokens == null ? {} : { maxTokens: max_tokens }),
    ...(presence_penalty == null ? {} : { presencePenalty: presence_penalty }),
    ...(frequency_penalty == null ? {} : { frequencyPenalty: frequency_penalty }),
  }
}

/** When told to stop, its whole tree is killed, and it has ended. */
async function untilEnded(execution: Execution, signal: AbortSignal): Promise<ExecResult> {
  const kill = (): void => void execution.kill()
  signal.addEventListener('abort', kill, { once: true })
  if (signal.aborted) kill()
  try {
    return await execution.result
  } finally {
    signal.removeEventListener('abort', kill)
  }
}

/** Whether a command can be run in a sandbox. */
async function isAlive(sandbox: Sandbox): Promise<boolean> {
  try {
    const probe = await sandbox.exec({ command: ['true'], leftovers: 'end', timeoutMs: 10_000 })
    return (await probe.result).exitCode === 0
  } catch {
    return false
  }
}

/** Evaluators that are modules of the user's may read all calls. A record may be large, so ours get none of its turns. */
async function toGraded({ loaded, facts }: SessionBuild, { evaluator }: TaskRequest): Promise<GradedSession> {
  const { turnCount: _, ...head } = loaded.head
  const [conversation, transcript] = [await loaded.readConversation(), await loaded.readTranscript()]
  return {
    session: evaluator?.strategy.includes('/') ? await loaded.readRecord() : { ...head, turns: [] },
    summary: facts.summary,
    // Parsed only where an evaluator asks for them.
    conversation: () => JSON.parse(conversation) as ChatMessage[],
    transcript: () => JSON.parse(transcript) as TranscriptEntry[],
  }
}

/** Most harnesses say nothing of an MCP server that did not start; the tools they then offer do. */
function missingServers(servers: readonly string[], { offered }: BuildFacts): string[] {
  return servers
    .filter((_, i) => offered[i] === false)
    .map((name) => `No tool of the MCP server "${name}" was ever offered to the model; did it start?`)
}

function whyIncomplete({ complete, incompleteReasons }: RecordHead): Failure | undefined {
  if (complete) return undefined
  return toFailure(new RolloutError('store.unavailable', `The record is not whole: ${incompleteReasons.join('; ')}`))
}

function toAsync(resource: Disposable): AsyncDisposable {
  return { [Symbol.asyncDispose]: async () => resource[Symbol.dispose]() }
}
