import { createWriteStream } from 'node:fs'
import { mkdir, rename } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import * as z from 'zod'
import type { SessionSummary } from '../../api/routes/session-routes.ts'
import type { Client } from '../../client/client.ts'
import { RolloutError } from '../../model/failure.ts'
import { EvalResult } from '../../model/reward.ts'
import type { SessionOrder } from '../../model/session-order.ts'
import { AgentEnding, BuildCounts, type SessionOutcome } from '../../model/session-outcome.ts'
import { SessionFolder } from '../../node/session/session-folder.ts'
import { createCallLogReader } from '../../store/call-log/reader.ts'
import type { SessionReader } from '../../store/store.ts'
import type { CampaignSession } from './run-campaign.ts'

/** Seconds that the server holds a request while the task runs. */
const POLL_SECONDS = 20

const CALL_LOG = 'calls.plog'

/** The fields of a result that decide about acceptance. */
const Facts = z.object({
  ending: z.object({ kind: AgentEnding.shape.kind, exit_code: z.int().nullable() }).nullish(),
  evaluation: EvalResult.nullish(),
  counts: BuildCounts.nullish(),
})

/**
 * Runs the sessions of a campaign on a server. Each session is a task of one sample whose id is the id of the session, so that
 * a repeated submit finds the same task. The call log and the outcome are stored in the session's folder, like those of a
 * session on this machine; the call log is below the id that the server gave to the session.
 */
export class ServerSessions {
  readonly #client: Client
  readonly #dir: string
  readonly #now: () => number

  /** `dir` has one folder per session. */
  constructor(client: Client, { dir, now }: { dir: string; now: () => number }) {
    this.#client = client
    this.#dir = dir
    this.#now = now
  }

  /** Also continues a session that an earlier process submitted. */
  submit(order: SessionOrder): CampaignSession {
    const cancelled = new AbortController()
    const outcome = this.#run(order, cancelled.signal)
    outcome.catch(() => {})
    return { sessionId: order.sessionId, outcome, cancel: () => cancelled.abort() }
  }

  async #run(order: SessionOrder, signal: AbortSignal): Promise<SessionOutcome> {
    const folder = SessionFolder.of(this.#dir, order.sessionId)
    await folder.writeOrder(order)
    const session = await this.#finish(order, signal)
    const result = await this.#client.getSessionResult({ params: { session_id: session.session_id } }).catch(ifMissing)
    const facts = Facts.safeParse(result?.metadata['polar']).data
    if ((facts?.counts?.turns ?? 0) > 0) await this.#download(folder, session.session_id)
    const outcome: SessionOutcome = {
      schemaVersion: 1,
      sessionId: order.sessionId,
      taskId: order.task.task_id,
      runId: order.runId,
      attempt: order.attempt,
      nodeId: session.node_id ?? '',
      status: session.status,
      failure: session.failure ?? undefined,
      ending: facts?.ending == null ? undefined : { kind: facts.ending.kind, exitCode: facts.ending.exit_code },
      grade: facts?.evaluation ?? undefined,
      counts: facts?.counts ?? undefined,
      timing: session.timing,
      artifacts: [],
      endedAt: this.#now(),
    }
    await folder.writeOutcome(outcome)
    return outcome
  }

  /** Submits the task and waits until it has ended. After a cancel it waits until the server has cancelled the task. */
  async #finish({ sessionId, task, runId }: SessionOrder, signal: AbortSignal): Promise<SessionSummary> {
    const params = { task_id: sessionId }
    const metadata = { ...task.metadata, campaign: runId, campaign_task: task.task_id }
    const body = { ...task, task_id: sessionId, num_samples: 1, metadata }
    await this.#client.submitTask({ body, idempotencyKey: sessionId })
    const onCancel = (): void => void this.#client.cancelTask({ params }).catch(() => {})
    signal.addEventListener('abort', onCancel, { once: true })
    if (signal.aborted) onCancel()
    for (let wait = 0; ; wait = POLL_SECONDS) {
      const { status } = await this.#client.getTask({ params, query: { wait, results: 'reference' } })
      if (status === 'running' || status === 'cancelling') continue
      const [session] = (await this.#client.listTaskSessions({ params })).sessions
      if (session !== undefined) return session
      throw new RolloutError('request.not-found', `Task ${sessionId} of the server has no session.`)
    }
  }

  async #download(folder: SessionFolder, sessionId: string): Promise<void> {
    const target = join(folder.path, sessionId)
    await mkdir(target, { recursive: true, mode: 0o700 })
    const draft = join(folder.path, `.${CALL_LOG}`)
    const params = { session_id: sessionId }
    const bytes = await this.#client.getArtifact({ params, query: { path: CALL_LOG } }).catch((error: unknown) => {
      if (!(error instanceof RolloutError) || error.code !== 'request.not-found') throw error
      const message = `The server has no call log of session ${sessionId}. Set node.uploads.call_log of its nodes to all.`
      throw new RolloutError('config.invalid', message, { cause: error })
    })
    await pipeline(Readable.fromWeb(bytes as Parameters<typeof Readable.fromWeb>[0]), createWriteStream(draft))
    await rename(draft, join(target, CALL_LOG))
  }
}

/** A session that was cancelled before it ran has no result. */
function ifMissing(error: unknown): undefined {
  const isMissing = error instanceof RolloutError && /^request\.(?:not-found|conflict)$/.test(error.code)
  if (!isMissing) throw error
}

/** Reads call logs that `ServerSessions` stored. */
export function createDownloadReader(dir: string): Pick<SessionReader, 'load'> {
  return {
    async load(sessionId) {
      const reader = createCallLogReader({ dir: SessionFolder.of(dir, sessionId).path })
      const [stored] = await reader.list()
      if (stored !== undefined) return reader.load(stored)
      throw new RolloutError('store.unavailable', `The call log of session ${sessionId} is missing.`)
    },
  }
}

/** Returns the sessions of a run that an earlier process submitted, or was about to submit. */
export async function loadUnfinished(dir: string, runId: string): Promise<SessionOrder[]> {
  const orders = await Promise.all((await SessionFolder.unfinished(dir)).map((folder) => folder.readOrder()))
  return orders.filter((order) => order.runId === runId)
}
