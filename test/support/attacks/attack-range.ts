import { randomBytes } from 'node:crypto'
import { chmod, mkdir, mkdtemp, readdir, readFile, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join, relative } from 'node:path'
import { fileURLToPath } from 'node:url'
import { startEngine, type Engine } from '../../../packages/tiny-engine/src/engine.ts'
import type { RunningSession } from '../../../src/node/node.ts'
import type { Runtime } from '../../../src/node/sandbox/runtimes/runtime.ts'
import { createCallLogReader } from '../../../src/store/call-log/reader.ts'
import type { SessionOutcome } from '../../../src/model/session-outcome.ts'
import type { SessionRecord } from '../../../src/model/session.ts'
import { removeTree } from '../../../src/node/sandbox/linux/records.ts'
import { NodeStack, orderOf, taskOf } from '../node-stack.ts'
import { startGradingService, type GradingService } from './grading-service.ts'
import { hostileAgent } from './hostile-agent.ts'
import { startRecordingRelay, type RecordingRelay } from './recording-relay.ts'
import { sectionOf } from './sections.ts'

export interface RangeOptions {
  /** Name of the runtime, a column of the table of results. */
  name: 'bubblewrap' | 'Podman' | 'Apptainer'
  /** Kind of the runtime, and its settings. */
  kind: string
  settings: Readonly<Record<string, unknown>>
}

/** An ended session. */
export interface EndedSession {
  outcome: SessionOutcome
  /** Standard output of the agent. */
  stdout: string
  stderr: string
  /** All stored files of the session, in one text. */
  artifacts: string
  /** Returns a file that an evaluator stored; empty if there is none. */
  evidence(name: string): string
  /** Returns the agent's output in a section. */
  section(name: string): string
}

/** Answers of the engine: `SCRIPT:name` in a message selects a scenario. */
const SCRIPT = `
scenarios:
  long: [{ tokens: 800 }]
  slow: [{ tokens: 40, per_token_ms: 25 }]
  refused: [{ fault: { kind: status, status: 400, message: refused } }]
default: { text: fine }
`

const HARNESS_MODULE = fileURLToPath(new URL('../modules/logging-harness.ts', import.meta.url))
const EVALUATOR_MODULE = fileURLToPath(new URL('../modules/answer-evaluator.ts', import.meta.url))

/** A node with an engine, a gateway, a runtime and services that grade, all real, for agents to attack. */
export class AttackRange implements AsyncDisposable {
  readonly #owned: AsyncDisposableStack
  readonly #shared = new Map<string, Promise<unknown>>()
  readonly #deferred: (() => Promise<void>)[] = []
  readonly name: RangeOptions['name']
  readonly options: RangeOptions
  readonly stack: NodeStack
  readonly runtime: Runtime
  readonly tinyEngine: Engine
  /** Requests to the engine. */
  readonly engine: RecordingRelay
  readonly service: GradingService
  /** The operator's files. No sandbox mounts it. */
  readonly dir: string
  /** In a file that every user of this machine can read, and in the environment of the node. */
  readonly secret: string
  readonly secretFile: string
  /** Token ids of every answer that the engine sampled, as JSON. */
  readonly sampled: Set<string>
  readonly harnessModule = HARNESS_MODULE
  readonly evaluatorModule = EVALUATOR_MODULE

  private constructor(
    parts: Pick<
      AttackRange,
      | 'options'
      | 'stack'
      | 'runtime'
      | 'tinyEngine'
      | 'engine'
      | 'service'
      | 'dir'
      | 'secret'
      | 'secretFile'
      | 'sampled'
    >,
    owned: AsyncDisposableStack,
  ) {
    this.name = parts.options.name
    this.options = parts.options
    this.stack = parts.stack
    this.runtime = parts.runtime
    this.tinyEngine = parts.tinyEngine
    this.engine = parts.engine
    this.service = parts.service
    this.dir = parts.dir
    this.secret = parts.secret
    this.secretFile = parts.secretFile
    this.sampled = parts.sampled
    this.#owned = owned
  }

  static async start(options: RangeOptions): Promise<AttackRange> {
    await using owned = new AsyncDisposableStack()
    const dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-attacks-'))
    owned.defer(() => removeTree(dir))
    await chmod(dir, 0o755)
    const secret = `secret-${randomBytes(12).toString('hex')}`
    // Not among the operator's files: scripts of agents contain the path, and their command lines are not a leak.
    const secretDir = await mkdtemp(join(await realpath(tmpdir()), 'polar-secret-'))
    owned.defer(() => rm(secretDir, { recursive: true, force: true }))
    await chmod(secretDir, 0o755)
    const secretFile = join(secretDir, 'secret')
    await writeFile(secretFile, secret)
    const sampled = new Set<string>()
    const log: NonNullable<Parameters<typeof startEngine>[0]>['log'] = ({ choices }) => {
      for (const { token_ids: ids } of choices) sampled.add(JSON.stringify(ids))
    }
    const tinyEngine = owned.use(await startEngine({ script: SCRIPT, log }))
    const engine = owned.use(await startRecordingRelay(tinyEngine.url))
    const service = owned.use(await startGradingService())
    const stack = owned.use(
      await NodeStack.start({
        upstream: engine.url,
        runtime: options.kind,
        runtimeSettings: { [options.kind]: options.settings },
        modules: [HARNESS_MODULE, EVALUATOR_MODULE],
        env: { ...process.env, ATTACK_SECRET: secret },
      }),
    )
    const { runtime } = await stack.opened.runtimes.open(undefined)
    const parts = { options, stack, runtime, tinyEngine, engine, service, dir, secret, secretFile, sampled }
    return new AttackRange(parts, owned.move())
  }

  /** Reason why sandboxes cannot be started here; undefined if they can. */
  async whyUnusable(): Promise<string | undefined> {
    const checked = await this.runtime.check(AbortSignal.timeout(30_000))
    return checked.isUsable ? undefined : checked.reason
  }

  /** Submits a session with a script of a hostile agent. `more`: other fields of the task. */
  submit(script: string, more: Record<string, unknown> = {}): RunningSession {
    const agent = { harness: 'shell', custom_shell: { command: hostileAgent(script) } }
    return this.stack.node.submit(orderOf(taskOf({ agent, timeout_seconds: 60, ...more })))
  }

  async run(script: string, more: Record<string, unknown> = {}): Promise<EndedSession> {
    return this.ended(await this.submit(script, more).outcome)
  }

  async ended(outcome: SessionOutcome): Promise<EndedSession> {
    const folder = join(this.stack.dir, 'sessions', outcome.sessionId, 'artifacts')
    const entries = await readdir(folder, { recursive: true, withFileTypes: true }).catch(() => [])
    const files = new Map<string, string>()
    for (const entry of entries.filter((each) => each.isFile())) {
      const path = join(entry.parentPath, entry.name)
      files.set(relative(folder, path), await readFile(path, 'latin1'))
    }
    const stdout = files.get('agent/stdout.log') ?? ''
    return {
      outcome,
      stdout,
      stderr: files.get('agent/stderr.log') ?? '',
      artifacts: [...files.values()].join('\n'),
      evidence: (name) => files.get(`evaluator/${name}`) ?? '',
      section: (name) => sectionOf(stdout, name),
    }
  }

  /** Returns the recorded calls of a session. */
  recorded({ outcome }: EndedSession): Promise<SessionRecord> {
    return createCallLogReader({ dir: join(this.stack.dir, 'sessions') }).load(outcome.sessionId)
  }

  /** Returns the same result to every caller; the first call creates it. */
  once<T>(key: string, make: () => Promise<T>): Promise<T> {
    const known = this.#shared.get(key) as Promise<T> | undefined
    if (known !== undefined) return known
    const made = make()
    this.#shared.set(key, made)
    return made
  }

  /** Registers the end of a session that runs during the attacks. */
  defer(work: () => Promise<void>): void {
    this.#deferred.push(work)
  }

  /** Ends the sessions that still run. */
  async settle(): Promise<void> {
    for (const work of this.#deferred.splice(0)) await work()
  }

  /** Creates a folder of the operator with these files; the name is part of its path. */
  async writeFiles(name: string, files: Readonly<Record<string, string>>): Promise<string> {
    const folder = join(this.dir, name)
    for (const [path, text] of Object.entries(files)) {
      await mkdir(dirname(join(folder, path)), { recursive: true })
      await writeFile(join(folder, path), text)
    }
    return folder
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.settle()
    await this.#owned.disposeAsync()
  }
}
