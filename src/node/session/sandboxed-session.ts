import { mkdir, rm, statfs } from 'node:fs/promises'
import { dirname, join, posix } from 'node:path'
import type { SessionAccess, SessionOptions } from '../../gateway/gateway.ts'
import { onAbort } from '../../lib/async/until-aborted.ts'
import { needsControl, type FailurePhase } from '../../model/attribution.ts'
import { RolloutError, type Failure } from '../../model/failure.ts'
import type { EvalResult } from '../../model/reward.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import type { AgentEnding, SessionOutcome } from '../../model/session-outcome.ts'
import type { SessionTiming } from '../../model/session.ts'
import type { PrepareAction, SamplingSpec } from '../../model/task.ts'
import { NO_NETWORK_NOTICE, noticesOf } from '../../model/task-notices.ts'
import type { Evaluator } from '../../trajectory/evaluators/evaluator.ts'
import { Artifacts } from './artifacts.ts'
import type { AgentRun, BuildOutcome } from './attribute-ending.ts'
import type { LoadedSession } from '../build/session-build.ts'
import { missingServers, whyIncomplete, type SessionBuild } from './built-session.ts'
import { controlEngine } from './engine-control.ts'
import { refuseGrade, SessionGrading } from './grade-session.ts'
import { Graders } from './graders.ts'
import { SANDBOX_GONE, toEnd } from './harness-end.ts'
import { planLaunch, type LaunchPlan } from '../harness/harness-launch.ts'
import { keepHarnessLogs } from './harness-logs.ts'
import { assertVersion } from '../harness/assert-version.ts'
import type { RunnableHarness } from '../harness/find-runnable.ts'
import type { Harness } from '../harness/presets/harness.ts'
import { readOutputEnd } from './output-end.ts'
import { launchInSandbox } from '../harness/launch-in-sandbox.ts'
import { reportSession } from './report-session.ts'
import type { SessionEnd, SessionSteps } from './run-session.ts'
import type { Execution, ExecResult, Mount, Runtime, Sandbox } from '../sandbox/runtimes/runtime.ts'
import { toSandboxSpec } from '../sandbox/prepare/sandbox-spec.ts'
import type { OpenRuntime, SandboxedSessionDeps } from './session-deps.ts'
import { identityVariables } from './session-environment.ts'
import type { SessionFolder } from './session-folder.ts'
import type { StartOptions } from '../sandbox/prepare/warm-start.ts'
import { withTimeLimit } from './time-limit.ts'
import { toGraded } from './to-graded.ts'

/** A port of the sandbox's own loopback interface. */
const GATEWAY_PORT = 8080
const BUNDLE = '/polar/harness'
const LOGS_MS = 30_000
const LOG_FULL =
  'The call log of this session reached its limit (node.gateway.session_log_mb), so the gateway refused its later model calls.'

const CRASHED_GATEWAY =
  'The gateway process died repeatedly during calls of this session, so the gateway rejected its later model calls.'

/** The runtime, harness and evaluator that the task names. */
interface Resolved extends OpenRuntime {
  runnable: RunnableHarness
  evaluator: Evaluator | undefined
}

/** The steps of a session with sandboxes, a harness and a gateway. Dispose of it after `report`. */
export class SandboxedSession implements SessionSteps<SessionBuild, SessionOutcome>, AsyncDisposable {
  readonly #order: SessionOrder
  readonly #deps: SandboxedSessionDeps
  readonly #folder: SessionFolder
  readonly #onError: (error: unknown) => void
  readonly #artifacts: Artifacts
  /** Disposed of by `tearDown`, the newest first. */
  readonly #owned = new AsyncDisposableStack()
  /** Aborted by `tearDown`. */
  readonly #over = new AbortController()
  readonly #timing: SessionTiming = {}
  readonly #warnings: string[] = []
  #resolved: Resolved | undefined
  #access: SessionAccess | undefined
  #logFailure: Failure | undefined
  #sandbox: Sandbox | undefined
  #graders: Graders | undefined
  #grading: SessionGrading | undefined
  #loaded: LoadedSession | undefined

  constructor(
    order: SessionOrder,
    deps: SandboxedSessionDeps,
    { folder, onError }: { folder: SessionFolder; onError: (error: unknown) => void },
  ) {
    this.#order = order
    this.#deps = deps
    this.#folder = folder
    this.#onError = onError
    this.#artifacts = new Artifacts(folder.artifacts, deps.artifacts)
  }

  async prepare(): Promise<void> {
    const { task, sessionId } = this.#order
    const deps = this.#deps
    await deps.host?.admit(task)
    await deps.createBuilder(task.builder)
    const evaluator = task.evaluator == null ? undefined : await deps.createEvaluator(task.evaluator)
    await evaluator?.check?.(async (source) => deps.host?.assertGradable(source, this.#submission()))
    const runnable = await deps.findHarness(task.agent)
    const opened = await deps.openRuntime(task.runtime)
    this.#resolved = { ...opened, runnable, evaluator }
    this.#access = await deps.gateway.openSession({
      id: sessionId,
      origin: originOf(this.#order, runnable.harness, opened.runtime.kind),
      sampling: task.sampling == null ? undefined : toSampling(task.sampling),
    })
  }

  async startSandbox(signal: AbortSignal): Promise<void> {
    const { task, sessionId } = this.#order
    const { gateway, clock, startTimes } = this.#deps
    const { runtime, starts, runnable, evaluator } = this.#resolved!
    const spec = toSandboxSpec(this.#order, runtime, {
      ...this.#sandboxParts('agent'),
      mounts: bundleMounts(runnable, runtime),
      socket: { port: GATEWAY_PORT, isPaused: true, accept: (socket) => gateway.accept(sessionId, socket) },
    })
    const startedAt = clock.monotonic()
    if (spec.network.kind === 'none') this.#warnings.push(...noticesOf(task))
    const either = AbortSignal.any([signal, this.#over.signal])
    const { actions, options } = this.#prepareActions(task.runtime?.prepare ?? [])
    const { sandbox } = await this.#own(this.#withNetworkHint(starts.start(spec, actions, either, options)))
    startTimes.add(task.task_id, clock.monotonic() - startedAt)
    this.#sandbox = sandbox
    if (evaluator?.needs.agentState) this.#owned.defer(() => runtime.removeSnapshot?.(this.#stateName()))
    this.#graders = this.#owned.use(this.#createGraders(this.#resolved!))
  }

  /** The preparation steps of a sandbox, and the environment of their commands. */
  #prepareActions(prepare: readonly PrepareAction[]): { actions: readonly PrepareAction[]; options: StartOptions } {
    const { task } = this.#order
    const { direct_exec_init_command: init, backend } = task.runtime ?? {}
    const env = identityVariables(this.#order)
    if (init == null || backend !== 'apptainer') return { actions: prepare, options: { env } }
    const first: PrepareAction = { type: 'exec', command: init, max_attempts: 1, retry_backoff_seconds: 0 }
    return { actions: [first, ...prepare], options: { env, startsProcesses: true } }
  }

  /** A step may have failed because the sandbox has no network. */
  #withNetworkHint<T>(started: Promise<T>): Promise<T> {
    return started.catch((error: unknown) => {
      const isStep = error instanceof RolloutError && error.code === 'runtime.prepare-failed'
      if (!isStep || !this.#warnings.includes(NO_NETWORK_NOTICE)) throw error
      throw new RolloutError(error.code, `${error.message}\n${NO_NETWORK_NOTICE}`, { cause: error })
    })
  }

  /** Stops the sandbox with the session, also if it starts only after the session ended. */
  async #own<T extends { sandbox: Sandbox }>(started: Promise<T>): Promise<T> {
    this.#owned.defer(async () => {
      const result = await started.catch(() => undefined)
      await result?.sandbox.stop()
    })
    const result = await started
    this.#renewLease(result.sandbox)
    return result
  }

  #renewLease(sandbox: Sandbox): Sandbox {
    // A sandbox that starts after the session ended is stopped at once, so its lease needs no renewal.
    if (!this.#owned.disposed) {
      const lease = this.#deps.leases.add(sandbox)
      this.#owned.defer(() => lease[Symbol.dispose]())
    }
    return sandbox
  }

  #createGraders({ runtime, starts, evaluator }: Resolved): Graders {
    const { task } = this.#order
    const { clock, standby } = this.#deps
    const spec = () => toSandboxSpec(this.#order, runtime, { ...this.#sandboxParts('grader'), mounts: [] })
    const start = async (prepare: readonly PrepareAction[], signal: AbortSignal): Promise<Sandbox> => {
      const { actions, options } = this.#prepareActions(prepare)
      return this.#renewLease((await starts.start(spec(), actions, signal, options)).sandbox)
    }
    const { prepare = [], eval_prepare: evalPrepare } = task.runtime ?? {}
    return new Graders({
      startClean: (signal) => start(evalPrepare ?? prepare, signal),
      startUntouched: (signal) => start(prepare, signal),
      startFromAgent: evaluator?.needs.agentState
        ? async (signal) => this.#renewLease(await runtime.start({ ...spec(), snapshot: this.#stateName() }, signal))
        : undefined,
      standby,
      now: () => clock.monotonic(),
    })
  }

  #sandboxParts(role: 'agent' | 'grader') {
    const { nodeId, defaultMemoryMb, clock } = this.#deps
    return { role, nodeId, defaultMemoryMb, now: clock.now() }
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
      using _ = onAbort(signal, () => void execution.kill())
      const result = await execution.result
      await this.#keepOutput(execution, result)
      const message = await readOutputEnd(execution, outputBytes)
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
    const { isolatesFiles } = runtime.capabilities
    const baseUrl = `http://127.0.0.1:${sandbox.socketPort}/s/${sessionId}`
    return planLaunch(
      harness,
      {
        start: bundle?.startAt(isolatesFiles ? BUNDLE : bundle.folder),
        home: this.#home(),
        workdir: sandbox.workdir,
        // Commands inherit the sandbox's own environment, such as PATH.
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

  /** Not in the workdir: files that the harness keeps for itself are no part of the agent's work. */
  #home(): string {
    const { isolatesFiles } = this.#resolved!.runtime.capabilities
    return isolatesFiles ? '/tmp/polar-home' : posix.join(dirname(this.#sandbox!.workdir), 'harness-home')
  }

  /**
   * Starts a grader's sandbox so early that it is likely to be ready when the harness ends. For the first sessions of a
   * task no times are known, so their graders are not started early. Returns a function that cancels the plan.
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
    this.#timing.build_ms = clock.monotonic() - startedAt
    this.#warnings.push(...missingServers(servers, facts))
    if (facts.isLogFull) this.#warnings.push(LOG_FULL)
    if (facts.hasCrashedGateway) this.#warnings.push(CRASHED_GATEWAY)
    const incomplete = this.#logFailure ?? whyIncomplete(loaded.head)
    const { answers, lastFailure } = facts
    const engineControl =
      lastFailure !== undefined && needsControl(lastFailure.code, { phase: 'call', answers })
        ? await this.#controlEngine(loaded)
        : undefined
    return { built: { loaded, facts }, answers, lastFailure, engineControl, incomplete }
  }

  /** Tests whether the engine still fails for the request of the last call while it answers other requests. */
  async #controlEngine(loaded: LoadedSession): Promise<'passed' | 'failed'> {
    const { sendToEngine, clock, model } = this.#deps
    const request = await loaded.readLastRequest()
    if (request === undefined) return 'failed'
    return controlEngine(request, { send: sendToEngine, model: model.name, clock, signal: this.#over.signal })
  }

  /** Runs after `seal`, when the key in the logs is no longer valid. A failure does not affect the session. */
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
    const limit = { ms: LOGS_MS, code: 'runtime.copy-failed', message: 'Copying the logs took too long.' } as const
    const scope = { clock, signal: this.#over.signal }
    await withTimeLimit(limit, scope, (signal) => keepHarnessLogs(logs, signal)).catch(() => {})
  }

  async grade(build: SessionBuild, ending: AgentEnding, signal: AbortSignal): Promise<EvalResult | undefined> {
    if (this.#resolved!.evaluator === undefined) return undefined
    const { clock } = this.#deps
    this.#grading ??= await this.#openGrading(this.#resolved!.evaluator, build, ending)
    const startedAt = clock.monotonic()
    try {
      const grade = await this.#grading.grade(signal)
      await this.#folder.writeGrade({ attempt: this.#order.attempt, ending, grade })
      return grade
    } finally {
      this.#timing.eval_ms = (this.#timing.eval_ms ?? 0) + clock.monotonic() - startedAt
      const times = this.#graders!.prewarmTimes
      if (times !== undefined) {
        this.#timing.eval_prewarm_idle_ms = times.idleMs
        this.#timing.eval_prewarm_saved_ms = times.savedMs
      }
    }
  }

  async #openGrading(
    evaluator: Evaluator,
    { loaded, facts }: SessionBuild,
    ending: AgentEnding,
  ): Promise<SessionGrading> {
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
      built: await toGraded(loaded, facts, { strategy: task.evaluator!.strategy, needs: evaluator.needs }),
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
    // Before grading starts, the captured calls are read for it.
    return this.#grading?.phase ?? 'build'
  }

  async control(failure: Failure, signal: AbortSignal): Promise<void> {
    await this.#grading!.control(failure, signal)
  }

  async refuse(failure: Failure, ending: AgentEnding): Promise<EvalResult | undefined> {
    const { evaluator } = this.#resolved!
    if (evaluator === undefined) return undefined
    const grade = await refuseGrade(failure, { evaluator, artifacts: this.#artifacts, phase: this.gradingPhase() })
    await this.#folder.writeGrade({ attempt: this.#order.attempt, ending, grade })
    return grade
  }

  /** Folder for the files that were copied out of the agent's sandbox. */
  #submission(): string {
    return join(this.#deps.scratch, this.#order.sessionId)
  }

  #stateName(): string {
    return `agent-${this.#order.sessionId}-${this.#order.attempt}`
  }

  async tearDown(): Promise<void> {
    this.#over.abort(new Error('The session ended.'))
    if (this.#access !== undefined) this.#owned.defer(() => this.seal())
    await this.#owned.disposeAsync()
  }

  async report(end: SessionEnd<SessionBuild>): Promise<SessionOutcome> {
    const { nodeId, clock, recovery } = this.#deps
    await this.#artifacts.settle({ hasFailed: end.status !== 'COMPLETED' }).catch(this.#onError)
    return reportSession(this.#order, end, {
      nodeId,
      timing: { ...end.timing, ...this.#timing },
      warnings: this.#warnings.length === 0 ? undefined : this.#warnings,
      artifacts: this.#artifacts.kept,
      endedAt: clock.now(),
      folder: this.#folder,
      writesResult: recovery === 'report',
      onError: this.#onError,
    })
  }

  /** Releases the build process with the samples. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#loaded?.[Symbol.asyncDispose]()
  }
}

function originOf({ task, attempt, runId }: SessionOrder, harness: Harness, runtime: string): Record<string, unknown> {
  return {
    task: task.task_id,
    run: runId,
    attempt,
    runtime,
    harness: { name: harness.name, version: harness.package?.version },
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
    temperature: temperature ?? undefined,
    topP: top_p ?? undefined,
    topK: top_k ?? undefined,
    minP: min_p ?? undefined,
    seed: seed ?? undefined,
    maxTokens: max_tokens ?? undefined,
    presencePenalty: presence_penalty ?? undefined,
    frequencyPenalty: frequency_penalty ?? undefined,
  }
}

/** Whether a sandbox can still run a command. */
async function isAlive(sandbox: Sandbox): Promise<boolean> {
  try {
    const probe = await sandbox.exec({ command: ['true'], leftovers: 'end', timeoutMs: 10_000 })
    return (await probe.result).exitCode === 0
  } catch {
    return false
  }
}
