import { setTimeout as sleep } from 'node:timers/promises'
import { type Client, createClient } from '../../../src/client/client.ts'
import { RolloutError } from '../../../src/model/failure.ts'
import type { TaskStatus } from '../../../src/model/task.ts'
import { ENDED } from './facts.ts'
import { type Call, type HistoryLog, monotonic, type ResultFact, type SeenEvent, type TaskView } from './history.ts'
import type { TrainerPlan } from './plan.ts'
import { toResultFact } from './witness.ts'

/** Time limit of a call; afterwards its outcome is unknown. */
const TIMEOUT_MS = 6000
const PAUSE_MS = 300
/** Reading a task includes all its results, so the number of reads is limited. */
const MAX_FULL_READS = 12
const MAX_RETRIES = 3

/** A trainer that submits, cancels, retries, reads and follows tasks during all faults. */
export class Trainer {
  readonly #client: Client
  /** Client with many retries, for streams, which resume automatically. */
  readonly #retryingClient: Client
  readonly #log: HistoryLog
  readonly heard: SeenEvent[] = []
  readonly followed = new Map<string, ResultFact[]>()

  constructor(options: { serverUrl: string; token: string; log: HistoryLog }) {
    const { serverUrl: baseUrl, token } = options
    this.#client = createClient({ baseUrl, token, attempts: 1 })
    this.#retryingClient = createClient({ baseUrl, token, attempts: 10_000, maxDelayMs: 500 })
    this.#log = options.log
  }

  /** Submits the task and resolves when the trainer has observed its end. */
  async look(plan: TrainerPlan, signal: AbortSignal): Promise<void> {
    await this.#callUntilKnown(plan, 'submit', signal, async (limit) => {
      await this.#client.submitTask({ body: plan.body as never, signal: limit, idempotencyKey: plan.taskId })
      return {}
    })
    await Promise.all([
      plan.doesFollow ? this.#follow(plan.taskId, signal) : undefined,
      plan.cancelAfterMs === undefined ? undefined : this.#cancelLater(plan, signal),
      this.#awaitEndWithRetries(plan, signal),
    ])
  }

  async #awaitEndWithRetries(plan: TrainerPlan, signal: AbortSignal): Promise<void> {
    await this.#awaitEnd(plan, signal)
    for (let retries = 0; plan.doesRetry && retries < MAX_RETRIES; retries += 1) {
      const retried = await this.#retry(plan, signal)
      await this.#awaitEnd(plan, signal)
      if (retried === 0) break
    }
  }

  async #cancelLater(plan: TrainerPlan, signal: AbortSignal): Promise<void> {
    await sleep(plan.cancelAfterMs, undefined, { signal })
    await this.#callUntilKnown(plan, 'cancel', signal, async (limit) => {
      const task = await this.#client.cancelTask({ params: { task_id: plan.taskId }, signal: limit })
      return { view: toView(task) }
    })
  }

  async #retry(plan: TrainerPlan, signal: AbortSignal): Promise<number> {
    const call = await this.#callUntilKnown(plan, 'retry', signal, async (limit) => {
      const body = { statuses: ['ERROR' as const] }
      const answer = await this.#client.retryTask({ params: { task_id: plan.taskId }, body, signal: limit })
      return { retried: answer.retried_sessions }
    })
    return call.retried ?? 0
  }

  async #awaitEnd(plan: TrainerPlan, signal: AbortSignal): Promise<void> {
    const { taskId } = plan
    for (let polls = 0, isOver = false; ; polls += 1) {
      // Most polls read only the status; a few read all results.
      if (isOver || (polls < MAX_FULL_READS && polls % 3 === 0)) {
        const { view } = await this.#callUntilKnown(plan, 'read', signal, (limit) => this.#read(taskId, limit))
        if (view !== undefined && ENDED.has(view.status)) return
      }
      isOver = await this.#wait(taskId, signal)
    }
  }

  async #read(taskId: string, signal: AbortSignal): Promise<Pick<Call, 'view'>> {
    return { view: toView(await this.#client.getTask({ params: { task_id: taskId }, signal })) }
  }

  async #wait(taskId: string, signal: AbortSignal): Promise<boolean> {
    try {
      const limit = AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)])
      const query = { wait: 2, results: 'reference' as const }
      const { status } = await this.#client.getTask({ params: { task_id: taskId }, query, signal: limit })
      return ENDED.has(status)
    } catch {
      await sleep(PAUSE_MS, undefined, { signal })
      return false
    }
  }

  /** Retries until the server accepts or rejects the call, and records every attempt. */
  async #callUntilKnown(
    { taskId }: TrainerPlan,
    op: Call['op'],
    signal: AbortSignal,
    send: (signal: AbortSignal) => Promise<Partial<Call>>,
  ): Promise<Call> {
    for (;;) {
      signal.throwIfAborted()
      const began = monotonic()
      let outcome: Call['outcome'] = 'ok'
      let more: Partial<Call> = {}
      try {
        more = await send(AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]))
      } catch (error) {
        outcome = isRefusal(error) ? 'refused' : 'unknown'
        more = { code: error instanceof RolloutError ? error.code : String(error) }
      }
      const call: Call = { kind: 'call', op, taskId, began, ended: monotonic(), outcome, ...more }
      this.#log.add(call)
      if (outcome !== 'unknown') return call
      await sleep(PAUSE_MS, undefined, { signal })
    }
  }

  async #follow(taskId: string, signal: AbortSignal): Promise<void> {
    const results: ResultFact[] = []
    const query = { follow: true }
    for await (const result of this.#retryingClient.streamTaskResults({ params: { task_id: taskId }, query, signal })) {
      results.push(toResultFact(result))
    }
    this.followed.set(taskId, results)
  }

  /** Collects all events from the first until the signal. */
  async listen(signal: AbortSignal): Promise<void> {
    for await (const event of readEvents(this.#retryingClient, signal)) this.heard.push(event)
  }
}

/** Reads all events from the first until the signal. */
export async function* readEvents(client: Client, signal: AbortSignal): AsyncGenerator<SeenEvent> {
  try {
    for await (const { id, data } of client.streamEvents({ query: { last_event_id: '0-0' }, signal })) {
      // These messages only carry the position in the stream.
      if (id === undefined || data.type === 'hello' || data.type === 'ping') continue
      const { task_id, session_id, attempt, status, refilled } = data.data as Record<string, string | undefined>
      yield {
        id,
        type: data.type,
        ...(task_id !== undefined && { taskId: task_id }),
        ...(session_id !== undefined && { sessionId: session_id }),
        ...(attempt !== undefined && { attempt: Number(attempt) }),
        ...(status !== undefined && { status }),
        ...(refilled !== undefined && { isRefilled: Boolean(refilled) }),
      }
    }
  } catch (error) {
    if (!signal.aborted) throw error
  }
}

export function toView(task: TaskStatus): TaskView {
  return {
    status: task.polar_status ?? task.status,
    total: task.total_sessions,
    completed: task.completed_sessions,
    results: task.results.map((result) => toResultFact(result)),
  }
}

/** Whether the server rejected the request; after any other error the outcome is unknown. */
function isRefusal(error: unknown): boolean {
  if (!(error instanceof RolloutError)) return false
  const { status } = error.failure
  return error.code !== 'server.unreachable' && status >= 400 && status < 500 && status !== 429
}
