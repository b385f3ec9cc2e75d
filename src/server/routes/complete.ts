import { invalidRequest } from '../../api/read-call.ts'
import type { Body } from '../../api/route.ts'
import { type Routes, routes } from '../../api/routes/index.ts'
import { readAll } from '../../api/limit-stream.ts'
import { createLimit } from '../../lib/async/limit.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { isTerminal } from '../../model/session.ts'
import type { Acceptance, ArtifactReference, ResultReference } from '../../store/dispatch/port.ts'
import { findSession } from '../../store/dispatch/queries/sessions.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { findStanding } from './find-standing.ts'
import { noSession } from './not-found.ts'
import type { PostedReading } from '../results/posted-result.ts'
import { MOST_RESULT_BYTES } from '../results/result-problem.ts'
import { noUpload } from './uploads.ts'

type Completion = Body<Routes['completeSession']>

/**
 * The end of a session. Bytes first, then the row that names them: whatever is cut off in between is done again by the
 * node, to the same end, and bytes that no row names are swept.
 */
export function completionHandlers(deps: ServerDeps): Some<'completeSession' | 'postSessionResult'> {
  return {
    async completeSession({ params, body }) {
      const { outcome } = body
      assertOutcome(outcome, params.node_id)
      assertOneResult(body)
      assertDistinct(body.artifacts)
      // Most that comes too late is told so here, and leaves no file behind.
      await assertWanted(outcome, deps)
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
      const session = await findSession(deps.database.db, sessionId)
      if (session === undefined) throw noSession(sessionId)
      if (taskId !== session.taskId) {
        const message = `Session ${sessionId} is of another task than ${JSON.stringify(taskId)}.`
        throw new RolloutError('request.malformed', message, { status: 422, param: 'body.task_id' })
      }
      if (nodeId === '') {
        // Without it anybody's would be taken for that of whoever has the session.
        const message = `The result of session ${sessionId} does not say which node it is of.`
        throw new RolloutError('request.malformed', message, { status: 422, param: 'body.node_id' })
      }
      if (!isTerminal(status)) {
        const message = `Session ${sessionId} is ${status}, so this cannot be its result.`
        throw new RolloutError('request.malformed', message, { status: 422, param: 'body.status' })
      }
      const now = deps.clock.now()
      // It does not say which attempt it is of. The one before may have been taken already, and its answer lost.
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
    const message = `The outcome of session ${sessionId} is of node ${nodeId}, and ${callerId} cannot speak for it.`
    throw new RolloutError('request.malformed', message, { status: 422, param: 'body.outcome.nodeId' })
  }
  if (!isTerminal(status)) {
    const message = `Session ${sessionId} is ${status}, so it is not over.`
    throw new RolloutError('request.malformed', message, { status: 422, param: 'body.outcome.status' })
  }
}

function assertOneResult({ outcome, result, result_upload_id: uploadId }: Completion): void {
  if (result === undefined || uploadId === undefined) return
  const message = `Session ${outcome.sessionId} brings a result and the upload of one; it has only one.`
  throw new RolloutError('request.malformed', message, { status: 422, param: 'body.result' })
}

function assertDistinct(artifacts: Completion['artifacts']): void {
  const seen = new Set<string>()
  for (const { path } of artifacts) {
    if (seen.has(path)) {
      const message = `Two artifacts are named ${JSON.stringify(path)}.`
      throw new RolloutError('request.malformed', message, { status: 422, param: 'body.artifacts' })
    }
    seen.add(path)
  }
}

async function assertWanted(outcome: SessionOutcome, { database }: ServerDeps): Promise<void> {
  const standing = await findStanding(database.db, outcome)
  if (standing === undefined) throw noSession(outcome.sessionId)
  // A session that is over may have moved with an older run of its task, under another id.
  if (standing.kind === 'held' && standing.taskId !== outcome.taskId) {
    const message = `Session ${outcome.sessionId} is of another task than ${JSON.stringify(outcome.taskId)}.`
    throw new RolloutError('request.malformed', message, { status: 422, param: 'body.outcome.taskId' })
  }
  if (standing.kind === 'held' || standing.kind === 'accepted') return
  throw stale(outcome, standing.kind === 'cancelled')
}

/** The same bytes come to the same name and digest in either way, so a duplicate is one whichever way it comes. */
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
  if (reference.bytes > MOST_RESULT_BYTES) {
    const message = `The result of session ${outcome.sessionId} is longer than ${MOST_RESULT_BYTES} bytes.`
    throw new RolloutError('request.too-large', message, { param })
  }
  const { stream } = await deps.files.open(reference.path)
  await deps.checker.check(await readAll(stream), outcome, param)
  return reference
}

/** Each waits for the disk; some at a time wait for it together. */
const FILES_AT_ONCE = 8

async function keepArtifacts({ outcome, artifacts }: Completion, deps: ServerDeps): Promise<ArtifactReference[]> {
  const limit = createLimit(FILES_AT_ONCE)
  const cut = new Set(outcome.artifacts.flatMap(({ path, isCut }) => (isCut ? [path] : [])))
  const keep = async (path: string, uploadId: string): Promise<ArtifactReference> => {
    await assertUpload(outcome, uploadId, deps)
    const reference = await deps.files.keep(outcome.nodeId, uploadId, { kind: 'artifact', path })
    return { path, storedPath: reference.path, bytes: reference.bytes, digest: reference.digest, isCut: cut.has(path) }
  }
  return Promise.all(artifacts.map(({ path, upload_id: uploadId }) => limit(() => keep(path, uploadId))))
}

/** It must be whole, and of this very attempt. */
async function assertUpload(
  { sessionId, attempt, nodeId }: SessionOutcome,
  uploadId: string,
  { files }: ServerDeps,
): Promise<void> {
  const upload = await files.find(nodeId, uploadId)
  if (upload === undefined) throw noUpload(uploadId)
  if (upload.sessionId !== sessionId || upload.attempt !== attempt) {
    const message = `Upload ${uploadId} is of attempt ${upload.attempt} at session ${upload.sessionId}.`
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
  const why = isCancelled ? 'it was cancelled' : 'it is over, or in other hands'
  return new RolloutError('request.stale', `Attempt ${attempt} at session ${sessionId} is not wanted any more: ${why}.`)
}
