import { RolloutError } from '../../model/failure.ts'
import { isTerminal } from '../../model/session.ts'
import type { AttemptSummary, SessionSummary } from '../../store/dispatch/port.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { openResult } from '../results/results.ts'
import { noSession, refusedRetry } from './request-errors.ts'
import { toSessionSummary } from './views.ts'

type SessionRoutes =
  | 'listSessions'
  | 'getSession'
  | 'cancelSession'
  | 'retrySession'
  | 'getSessionResult'
  | 'listArtifacts'
  | 'getArtifact'

export function sessionHandlers(deps: ServerDeps): Some<SessionRoutes> {
  const { dispatch } = deps
  const find = async (sessionId: string): Promise<SessionSummary & { attempts: AttemptSummary[] }> => {
    const session = await dispatch.sessions.find(sessionId)
    if (session === undefined) throw noSession(sessionId)
    return session
  }
  return {
    async listSessions({ query: { status, task_id, node_id, harness, failure, limit, cursor } }) {
      const { sessions, next } = await dispatch.sessions.list({
        limit,
        status,
        taskId: task_id,
        nodeId: node_id,
        harness,
        failure,
        cursor,
      })
      return { sessions: sessions.map(toSessionSummary), next_cursor: next }
    },
    async getSession({ params }) {
      const session = await find(params.session_id)
      const attempts = session.attempts.map((each) => ({
        attempt: each.attempt,
        node_id: each.nodeId,
        ending: each.ending ?? null,
        failure: each.failure ?? null,
        leased_at: each.leasedAt === undefined ? null : each.leasedAt / 1000,
        ended_at: each.endedAt === undefined ? null : each.endedAt / 1000,
      }))
      return { ...toSessionSummary(session), attempts }
    },
    async cancelSession({ params }) {
      await find(params.session_id)
      const cancelled = await dispatch.cancelSession(params.session_id)
      const { status } = await find(params.session_id)
      return { session_id: params.session_id, status, cancelled }
    },
    async retrySession({ params }) {
      const { kind } = await dispatch.retrySession(params.session_id)
      if (kind !== 'retried') throw refusedRetry(kind, params.session_id)
      return toSessionSummary(await find(params.session_id))
    },
    async getSessionResult({ params }) {
      const session = await find(params.session_id)
      if (!isTerminal(session.status)) {
        throw new RolloutError(
          'request.conflict',
          `Session ${params.session_id} has status ${session.status}; its result is available when it has ended.`,
        )
      }
      return openResult(session, deps)
    },
    async listArtifacts({ params }) {
      await find(params.session_id)
      const artifacts = await dispatch.sessions.listArtifacts(params.session_id)
      return {
        session_id: params.session_id,
        artifacts: artifacts.map(({ path, bytes, isCut, digest }) => ({ path, bytes, is_cut: isCut, digest })),
      }
    },
    async getArtifact({ params, query: { path, offset, length } }) {
      const artifact = await dispatch.sessions.findArtifact(params.session_id, path)
      if (artifact === undefined) {
        await find(params.session_id)
        throw new RolloutError('request.not-found', `Session ${params.session_id} has no file ${JSON.stringify(path)}.`)
      }
      const { stream, bytes } = await deps.files.open(artifact.storedPath, { offset, length })
      return { stream, bytes }
    },
  }
}
