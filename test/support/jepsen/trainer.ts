import { setTimeout as sleep } from 'node:timers/promises'
import { type Client, createClient } from '../../../src/client/client.ts'
import { RolloutError } from '../../../src/model/failure.ts'
import type { TaskStatus } from '../../../src/model/task.ts'
import { ENDED } from './facts.ts'
import { type Call, type HistoryLog, monotonic, type ResultFact, type SeenEvent, type TaskView } from './history.ts'
import type { TrainerPlan } from './plan.ts'
import { toResultFact } from './witness.ts'

/** No call waits longer for an answer: what came of it is unknown then. */
const PATIENCE_MS = 6000
const PAUSE_MS = 300
/** Reading a task costs as much as all its results. */
const MOST_LOOKS_THAT_READ = 12
const MOST_RETRIES = 3

/** Somebody who submits tasks, changes its mind, looks after them and listens, whatever happens to the server. */
export class Trainer {
  readonly #client: Client
  /** For streams, which go on by themselves. */
  readonly #stubborn: Client
  readonly #log: HistoryLog
  readonly heard: SeenEvent[] = []
  readonly followed = new Map<string, ResultFact[]>()

  constructor(options: { serverUrl: string; token: string; log: HistoryLog }) {
    const { serverUrl: baseUrl, token } = options
    this.#client = createClient({ baseUrl, token, attempts: 1 })
    this.#stubborn = createClient({ baseUrl, token, attempts: 10_000, maxDelayMs: 500 })
    this.#log = options.log
  }

  /** Resolves when the task has been seen to be over. */
  async look(plan: TrainerPlan, signal: AbortSignal): Promise<void> {
    await this.#insist(plan, 'submit', signal, async (limit) => {
      await this.#client.submitTask({ body: plan.body as never, signal: limit, idempotencyKey: plan.taskId })
      return {}
    })
    await Promise.all([
      plan.doesFollow ? this.#follow(plan.taskId, signal) : undefined,
      plan.cancelAfterMs === undefined ? undefined : this.#cancelLater(plan, signal),
      this.#seeThrough(plan, signal),
    ])
  }

  async #seeThrough(plan: TrainerPlan, signal: AbortSignal): Promise<void> {
    await this.#awaitEnd(plan, signal)
    for (let retries = 0; plan.doesRetry && retries < MOST_RETRIES; retries += 1) {
      const retried = await this.#retry(plan, signal)
      await this.#awaitEnd(plan, signal)
      if (retried === 0) break
    }
  }

  async #cancelLater(plan: TrainerPlan, signal: AbortSignal): Promise<void> {
    await sleep(plan.cancelAfterMs, undefined, { signal })
    await this.#insist(plan, 'cancel', signal, async (limit) => {
      const task = await this.#client.cancelTask({ params: { task_id: plan.taskId }, signal: limit })
      return { view: toView(task) }
    })
  }

  async #retry(plan: TrainerPlan, signal: AbortSignal): Promise<number> {
    const call = await this.#insist(plan, 'retry', signal, async (limit) => {
      const body = { statuses: ['ERROR' as const] }
      const answer = await this.#client.retryTask({ params: { task_id: plan.taskId }, body, signal: limit })
      return { retried: answer.retried_sessions }
    })
    return call.retried ?? 0
  }

  async #awaitEnd(plan: TrainerPlan, signal: AbortSignal): Promise<void> {
    const { taskId } = plan
    for (let looks = 0, isOver = false; ; looks += 1) {
      // Most only look how far it is; a few read everything there is.
      if (isOver || (looks < MOST_LOOKS_THAT_READ && looks % 3 === 0)) {
        const { view } = await this.#insist(plan, 'read', signal, (limit) => this.#read(taskId, limit))
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
      const limit = AbortSignal.any([signal, AbortSignal.timeout(PATIENCE_MS)])
      const query = { wait: 2, results: 'reference' as const }
      const { status } = await this.#client.getTask({ params: { task_id: taskId }, query, signal: limit })
      return ENDED.has(status)
    } catch {
      await sleep(PAUSE_MS, undefined, { signal })
      return false
    }
  }

  /** Tries until the server has said yes or no, and writes down every try. */
  async #insist(
    { taskId }: TrainerPlan,
    op: Call['op'],
    signal: AbortSignal,
    ask: (signal: AbortSignal) => Promise<Partial<Call>>,
  ): Promise<Call> {
    for (;;) {
      signal.throwIfAborted()
      const began = monotonic()
      let outcome: Call['outcome'] = 'ok'
      let more: Partial<Call> = {}
      try {
        more = await ask(AbortSignal.any([signal, AbortSignal.timeout(PATIENCE_MS)]))
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
    for await (const result of this.#stubborn.streamTaskResults({ params: { task_id: taskId }, query, signal })) {
      results.push(toResultFact(result))
    }
    this.followed.set(taskId, results)
  }

  /** Hears all events from the first to the one it is told to end with. */
  async listen(signal: AbortSignal): Promise<void> {
    for await (const event of readEvents(this.#stubborn, signal)) this.heard.push(event)
  }
}

/** From the beginning, until the signal. */
export async function* readEvents(client: Client, signal: AbortSignal): AsyncGenerator<SeenEvent> {
  try {
    for await (const { id, data } of client.streamEvents({ query: { last_event_id: '0-0' }, signal })) {
      // These only say where to go on, and are no events themselves.
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

/** The server understood, and will not do it; anything else may have happened or not. */
function isRefusal(error: unknown): boolean {
  if (!(error instanceof RolloutError)) return false
  const { status } = error.failure
  return error.code !== 'server.unreachable' && status >= 400 && status < 500 && status !== 429
}
