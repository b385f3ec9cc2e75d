import type { Upload } from '../../api/routes/upload-routes.ts'
import { RolloutError } from '../../model/failure.ts'
import type { UploadState } from '../../store/files.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { noSession, noUpload } from './request-errors.ts'

export function uploadHandlers({ dispatch, files }: ServerDeps): Some<'beginUpload' | 'getUpload' | 'putPart'> {
  return {
    async beginUpload({ params, body }) {
      const { session_id: sessionId, attempt, bytes, digest } = body
      const state = await dispatch.sessions.findAttemptState({ sessionId, attempt, nodeId: params.node_id })
      if (state === undefined) throw noSession(sessionId)
      // The node repeats the upload of an accepted result if it did not receive the response.
      if (state.kind !== 'held' && state.kind !== 'accepted') throw staleUpload(sessionId, attempt)
      return toUpload(await files.begin({ nodeId: params.node_id, sessionId, attempt, bytes, digest }))
    },
    async getUpload({ params }) {
      const upload = await files.find(params.node_id, params.upload_id)
      if (upload === undefined) throw noUpload(params.upload_id)
      return toUpload(upload)
    },
    async putPart({ params, query, body }) {
      return toUpload(await files.append(params.node_id, params.upload_id, query.offset, body, query.digest))
    },
  }
}

function staleUpload(sessionId: string, attempt: number): RolloutError {
  const message = `This node no longer holds attempt ${attempt} of session ${sessionId}, so uploads for it are refused.`
  return new RolloutError('request.stale', message)
}

function toUpload({ uploadId, offset, bytes, digest, isComplete }: UploadState): Upload {
  return { upload_id: uploadId, offset, bytes, digest, is_complete: isComplete }
}
