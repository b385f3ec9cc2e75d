import { readAll } from '../../api/limit-stream.ts'
import { invalidRequest } from '../../api/read-call.ts'
import type { Body } from '../../api/route.ts'
import { type Routes, routes } from '../../api/routes/index.ts'
import { createLimit } from '../../lib/async/limit.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { isTerminal } from '../../model/session.ts'
import type { Acceptance, ArtifactReference, ResultReference } from '../../store/dispatch/port.ts'
import type { ServerDeps, Some } from '../deps.ts'
import type { PostedReading } from '../results/posted-result.ts'
import { MAX_RESULT_BYTES } from '../results/result-problem.ts'
import { noSession, noUpload } from './request-errors.ts'

type Completion = Body<Routes['completeSession']>

/**
 * Stores the result files of a session first, then the row that refers to them. After a crash in between the node repeats the
 * request with the same outcome; files without a row are swept.
 */
export function completionHandlers(deps: ServerDeps): Some<'completeSession' | 'postSessionResult'> {
  return {
    async completeSession({ params, body }) {
      const { outcome } = body
      assertOutcome(outcome, params.node_id)
      assertOneResult(body)
      assertDistinct(body.artifacts)
      // Rejects most late results before any file is stored.
      await assertCurrent(outcome, deps)
      const result = await keepResult(body, deps)
      const artifacts = await keepArtifacts(body, deps)
      const acceptance = await deps.dispatch.accept(outcome, result, artifacts)
      assertAccepted(acceptance, outcome)
      if (acceptance.kind === 'duplicate') return { kind: 'duplicate' }
      return { kind: 'accepted', is_refilled: acceptance.isRefilled, task_status: acceptance.taskStatus }
    },
    async postSessionResult({ body, authorizeNode }) {
      const { nodeId = '', outcome: posted, compressed } = assertRead(await deps.checker.read(body))
      authorizeNode(nodeId === '' ? undefined : nodeId)
      const { sessionId, taskId, status } = posted
      const session = await deps.dispatch.sessions.find(sessionId)
      if (session === undefined) throw noSession(sessionId)
      if (taskId !== session.taskId) {
        const message = `Session ${sessionId} does not belong to task ${JSON.stringify(taskId)}.`
        throw new RolloutError('request.malformed', message, { status: 422, param: 'body.task_id' })
      }
      if (nodeId === '') {
        // Without the node id, a result of any node would count as the result of the node that holds the session.
        const message = `The result of session ${sessionId} has no node_id.`
        throw new RolloutError('request.malformed', message, { status: 422, param: 'body.node_id' })
      }
      if (!isTerminal(status)) {
        const message = `The result of session ${sessionId} has status ${status}; send the result when the session has ended.`
        throw new RolloutError('request.malformed', message, { status: 422, param: 'body.status' })
      }
      const now = deps.clock.now()
      // A posted result has no attempt number. It may repeat the previous attempt, whose response was lost.
      const post = async (attempt: number): Promise<Acceptance> => {
        const outcome = { ...posted, attempt, nodeId, endedAt: now }
        return deps.dispatch.accept(outcome, await deps.files.put(sessionId, attempt, compressed))
      }
      const { attempt } = session
      const first = await post(attempt)
      const acceptance = first.kind === 'refused' && attempt > 1 ? await post(attempt - 1) : first
      assertAccepted(acceptance.kind === 'refused' ? first : acceptance, { sessionId, attempt })
      return { status: 'accepted' }
    },
  }
}

function assertRead(reading: PostedReading): Extract<PostedReading, { kind: 'read' }> {
  switch (reading.kind) {
    case 'read':
      return reading
    case 'invalid':
      throw invalidRequest(routes.postSessionResult, reading.problems)
    case 'failed': {
      const { code, message, ...fields } = reading.failure
      throw new RolloutError(code, message, fields)
    }
  }
}

function assertOutcome({ nodeId, sessionId, status }: SessionOutcome, callerId: string): void {
  if (nodeId !== callerId) {
    const message = `Node ${callerId} sent the outcome of session ${sessionId} for node ${nodeId}; a node may only send its own.`
    throw new RolloutError('request.malformed', message, { status: 422, param: 'body.outcome.nodeId' })
  }
  if (!isTerminal(status)) {
    const message = `The outcome of session ${sessionId} has status ${status}; send the outcome when the session has ended.`
    throw new RolloutError('request.malformed', message, { status: 422, param: 'body.outcome.status' })
  }
}

function assertOneResult({ outcome, result, result_upload_id: uploadId }: Completion): void {
  if (result === undefined || uploadId === undefined) return
  const message = `Session ${outcome.sessionId} has both result and result_upload_id; send one of them.`
  throw new RolloutError('request.malformed', message, { status: 422, param: 'body.result' })
}

function assertDistinct(artifacts: Completion['artifacts']): void {
  const seen = new Set<string>()
  for (const { path } of artifacts) {
    if (seen.has(path)) {
      const message = `Two artifacts have the path ${JSON.stringify(path)}; paths must be unique.`
      throw new RolloutError('request.malformed', message, { status: 422, param: 'body.artifacts' })
    }
    seen.add(path)
  }
}

async function assertCurrent(outcome: SessionOutcome, { dispatch }: ServerDeps): Promise<void> {
  const state = await dispatch.sessions.findAttemptState(outcome)
  if (state === undefined) throw noSession(outcome.sessionId)
  // An ended session may belong to an archived run, which has another task id.
  if (state.kind === 'held' && state.taskId !== outcome.taskId) {
    const message = `Session ${outcome.sessionId} does not belong to task ${JSON.stringify(outcome.taskId)}.`
    throw new RolloutError('request.malformed', message, { status: 422, param: 'body.outcome.taskId' })
  }
  if (state.kind === 'held' || state.kind === 'accepted') return
  throw stale(outcome, state.kind === 'cancelled')
}

/** Inline and uploaded results get the same path and digest, so a duplicate is detected either way. */
async function keepResult(
  { outcome, result, result_upload_id: uploadId }: Completion,
  deps: ServerDeps,
): Promise<ResultReference | undefined> {
  if (result !== undefined) {
    const bytes = Buffer.from(result, 'base64')
    await deps.checker.check(bytes, outcome, 'body.result')
    return deps.files.put(outcome.sessionId, outcome.attempt, bytes)
  }
  if (uploadId === undefined) return undefined
  await assertUpload(outcome, uploadId, deps)
  const param = 'body.result_upload_id'
  const reference = await deps.files.keep(outcome.nodeId, uploadId, { kind: 'result' })
  if (reference.bytes > MAX_RESULT_BYTES) {
    const message = `The result of session ${outcome.sessionId} is larger than ${MAX_RESULT_BYTES} bytes; let the task build fewer or shorter traces.`
    throw new RolloutError('request.too-large', message, { param })
  }
  const { stream } = await deps.files.open(reference.path)
  await deps.checker.check(await readAll(stream), outcome, param)
  return reference
}

/** Files that are flushed to disk in parallel. */
const MAX_PARALLEL_FILES = 8

async function keepArtifacts({ outcome, artifacts }: Completion, deps: ServerDeps): Promise<ArtifactReference[]> {
  const limit = createLimit(MAX_PARALLEL_FILES)
  const cut = new Set(outcome.artifacts.flatMap(({ path, isCut }) => (isCut ? [path] : [])))
  const keep = async (path: string, uploadId: string): Promise<ArtifactReference> => {
    await assertUpload(outcome, uploadId, deps)
    const reference = await deps.files.keep(outcome.nodeId, uploadId, { kind: 'artifact', path })
    return { path, storedPath: reference.path, bytes: reference.bytes, digest: reference.digest, isCut: cut.has(path) }
  }
  return Promise.all(artifacts.map(({ path, upload_id: uploadId }) => limit(() => keep(path, uploadId))))
}

/** The upload must be complete and belong to this attempt. */
async function assertUpload(
  { sessionId, attempt, nodeId }: SessionOutcome,
  uploadId: string,
  { files }: ServerDeps,
): Promise<void> {
  const upload = await files.find(nodeId, uploadId)
  if (upload === undefined) throw noUpload(uploadId)
  if (upload.sessionId !== sessionId || upload.attempt !== attempt) {
    const message = `Upload ${uploadId} belongs to attempt ${upload.attempt} of session ${upload.sessionId}.`
    throw new RolloutError('request.malformed', message, { status: 422 })
  }
  if (upload.isComplete) return
  const message = `Upload ${uploadId} has ${upload.offset} of ${upload.bytes} bytes; send the rest first.`
  throw new RolloutError('request.conflict', message)
}

function assertAccepted(
  acceptance: Acceptance,
  lease: { sessionId: string; attempt: number },
): asserts acceptance is Exclude<Acceptance, { kind: 'refused' }> {
  if (acceptance.kind !== 'refused') return
  if (acceptance.reason === 'unknown-session') throw noSession(lease.sessionId)
  throw stale(lease, acceptance.reason === 'cancelled')
}

function stale({ sessionId, attempt }: { sessionId: string; attempt: number }, isCancelled: boolean): RolloutError {
  const why = isCancelled ? 'it was cancelled' : 'the session ended, or another node has leased it'
  return new RolloutError(
    'request.stale',
    `The result of attempt ${attempt} of session ${sessionId} is refused: ${why}.`,
  )
}
