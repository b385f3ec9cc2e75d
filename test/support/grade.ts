import { mkdir, mkdtemp, realpath, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import * as z from 'zod'
import { RolloutError } from '../../src/model/failure.ts'
import type { ChatMessage } from '../../src/model/chat-message.ts'
import { EvalResult } from '../../src/model/reward.ts'
import type { SessionRecord } from '../../src/model/session.ts'
import type { TranscriptEntry } from '../../src/model/transcript.ts'
import { PrepareAction } from '../../src/model/task.ts'
import { prepareSandbox } from '../../src/node/sandbox/prepare/prepare-sandbox.ts'
import { runtimes } from '../../src/node/sandbox/runtimes/index.ts'
import type { ExecResult, Runtime, Sandbox, SandboxSpec } from '../../src/node/sandbox/runtimes/runtime.ts'
import { toWorkspace } from '../../src/node/sandbox/prepare/sandbox-workspace.ts'
import type { AgentEnding } from '../../src/model/session-outcome.ts'
import type { Collection, Evaluation, Evaluator } from '../../src/trajectory/evaluators/evaluator.ts'
import { removeTree } from '../../src/node/sandbox/linux/records.ts'
import { runtimeConfig } from './bubblewrap.ts'

export interface GradeOptions {
  evaluator: Evaluator
  /** Bash script of the agent, run in its workdir; its background processes end with it. Absent: the agent does nothing. */
  agent?: string
  /** Prepares the agent's sandbox, and the graders' sandboxes unless `evalPrepare` is set. */
  prepare?: readonly z.input<typeof PrepareAction>[]
  evalPrepare?: readonly z.input<typeof PrepareAction>[]
  /** Settings of all sandboxes. */
  spec?: Partial<SandboxSpec>
  /** Absent: derived from the exit of the script. */
  ending?: AgentEnding
  session?: SessionRecord
  conversation?: readonly ChatMessage[]
  /** Absent: the conversation, with every assistant message as sampled. */
  transcript?: readonly TranscriptEntry[]
  samples?: number
  task?: Partial<Collection['task']>
  env?: Readonly<Record<string, string>>
  signal?: AbortSignal
  /** Number of gradings of the collected files; default 1. */
  times?: number
  /** Called between the agent's end and its grading; a returned evaluation replaces the evaluation. */
  beforeEvaluate?(evaluation: Evaluation): Promise<Evaluation | void> | Evaluation | void
  /** Called when a grader's sandbox is ready. */
  onGrader?(sandbox: Sandbox): Promise<void> | void
}

export interface Graded {
  result: EvalResult
  /** One result per grading; `result` is the last. */
  results: readonly EvalResult[]
  /** Stored evidence by name. */
  evidence: Map<string, Buffer>
  /** Number of requested grading sandboxes. */
  graders: number
  agentExit: ExecResult | undefined
}

const EVIDENCE_NAME = /^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}$/

/** Runs agents and grades them in real sandboxes, in the order of a node. */
export class Grading implements AsyncDisposable {
  readonly runtime: Runtime
  /** Temporary folder for files of a test. */
  readonly dir: string
  #count = 0

  private constructor(runtime: Runtime, dir: string) {
    this.runtime = runtime
    this.dir = dir
  }

  /** Uses bubblewrap if it can run; otherwise prints the reason and uses `local`. */
  static async start(kind?: 'local' | 'bubblewrap'): Promise<Grading> {
    const dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-grade-'))
    const create = (chosen: 'local' | 'bubblewrap') =>
      runtimes.create(runtimes.config.parse(runtimeConfig(chosen)), { dir: join(dir, 'data'), now: Date.now })
    if (kind !== undefined) return new Grading(create(kind), dir)
    const runtime = create('bubblewrap')
    const checked = await runtime.check(AbortSignal.timeout(30_000))
    if (checked.isUsable) return new Grading(runtime, dir)
    console.log(`bubblewrap cannot run here, local takes its place: ${checked.reason}`)
    await runtime[Symbol.asyncDispose]()
    return new Grading(create('local'), dir)
  }

  async grade(options: GradeOptions): Promise<Graded> {
    const id = `grade-${process.pid}-${(this.#count += 1)}`
    const signal = options.signal ?? AbortSignal.timeout(120_000)
    const submission = join(this.dir, id)
    await mkdir(submission)
    const evidence = new Map<string, Buffer>()
    const collection: Collection = {
      sessionId: id,
      task: { id: 'task', instruction: 'Do it.', metadata: {}, ...options.task },
      submission,
      evidence: {
        async write(name, data) {
          if (!EVIDENCE_NAME.test(name)) throw new TypeError(`${JSON.stringify(name)} is no name for evidence`)
          evidence.set(name, Buffer.from(data))
        },
      },
      env: options.env ?? {},
      signal,
    }
    const prepare = z.array(PrepareAction).parse(options.prepare ?? [])
    const evalPrepare = options.evalPrepare === undefined ? prepare : z.array(PrepareAction).parse(options.evalPrepare)
    await using owned = new AsyncDisposableStack()
    owned.defer(() => rm(submission, { recursive: true, force: true }))

    const { evaluator } = options
    let agentExit: ExecResult | undefined
    let snapshot: string | undefined
    if (options.agent !== undefined || evaluator.collect !== undefined) {
      await using agent = await this.#start(`${id}-agent`, options.spec, signal)
      await prepareSandbox(agent, prepare, signal)
      agentExit = await runAgent(agent, options.agent ?? 'true')
      try {
        await evaluator.collect?.(toWorkspace(agent, signal), collection)
      } catch (error) {
        if (!(error instanceof RolloutError) || error.blame !== 'policy') throw error
        const metadata = { failure: error.code, message: error.message }
        const result = EvalResult.parse({ outcome_reward: evaluator.rewards?.[0] ?? 0, metadata })
        return { result, results: [result], evidence, graders: 0, agentExit }
      }
      if (evaluator.needs.agentState) {
        snapshot = `${id}-state`
        await agent.snapshot(snapshot)
      }
    }

    let graders = 0
    const evaluation: Evaluation = {
      ...collection,
      ending: options.ending ?? {
        kind: agentExit === undefined || agentExit.exitCode === 0 ? 'completed' : 'failed',
        exitCode: agentExit?.exitCode ?? 0,
      },
      session: options.session ?? emptySession(id),
      conversation: () => declared(evaluator, options.conversation ?? []),
      transcript: () => declared(evaluator, options.transcript ?? (options.conversation ?? []).map(toEntry)),
      samples: options.samples ?? 1,
      grader: async (from = 'clean') => {
        if (from === 'agent' && snapshot === undefined) throw new TypeError('needs.agentState was not set')
        graders += 1
        const more = from === 'agent' ? { ...options.spec, snapshot: snapshot! } : options.spec
        const sandbox = owned.use(await this.#start(`${id}-grader-${graders}`, more, signal))
        if (from === 'clean') await prepareSandbox(sandbox, evalPrepare, signal)
        await options.onGrader?.(sandbox)
        return toWorkspace(sandbox, signal)
      },
    }
    const given = (await options.beforeEvaluate?.(evaluation)) ?? evaluation
    const results: EvalResult[] = []
    for (let time = 0; time < (options.times ?? 1); time++) {
      results.push(EvalResult.parse(await evaluator.evaluate(given)))
    }
    return { result: results.at(-1)!, results, evidence, graders, agentExit }
  }

  #start(id: string, more: Partial<SandboxSpec> | undefined, signal: AbortSignal): Promise<Sandbox> {
    const spec: SandboxSpec = {
      id,
      workdir: '/workspace',
      env: {},
      limits: {},
      network: { kind: this.runtime.capabilities.networks.includes('none') ? 'none' : 'open' },
      mounts: [],
      labels: { suite: 'grade' },
      leaseUntil: Date.now() + 600_000,
      ...more,
    }
    return this.runtime.start(spec, signal)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const left = await this.runtime.list()
    await this.runtime[Symbol.asyncDispose]()
    await removeTree(this.dir)
    if (left.length > 0)
      throw new Error(`${left.length} sandboxes were left: ${left.map((each) => each.id).join(', ')}`)
  }
}

async function runAgent(sandbox: Sandbox, script: string): Promise<ExecResult> {
  const execution = await sandbox.exec({ command: ['bash', '-c', script], leftovers: 'end', timeoutMs: 60_000 })
  return execution.result
}

/** Like a node, provides messages only to an evaluator that declares that it reads them. */
function declared<T>({ needs }: Evaluator, messages: T): T {
  if (needs.messages === false) throw new TypeError('needs.messages was not set')
  return messages
}

function toEntry(message: ChatMessage): TranscriptEntry {
  return { source: message.role === 'assistant' ? 'sampled' : 'claimed', message }
}

/** Returns a session without calls. */
export function emptySession(id = 'session'): SessionRecord {
  return { id, createdAt: 0, origin: {}, turns: [], complete: true, incompleteReasons: [] }
}
