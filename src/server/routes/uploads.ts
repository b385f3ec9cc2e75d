import type { Upload } from '../../api/routes/upload-routes.ts'
import { RolloutError } from '../../model/failure.ts'
import type { UploadState } from '../../store/files.ts'
import type { ServerDeps, Some } from '../deps.ts'
import { findStanding } from './find-standing.ts'
import { noSession } from './not-found.ts'

export function uploadHandlers({ database, files }: ServerDeps): Some<'beginUpload' | 'getUpload' | 'putPart'> {
  return {
    async beginUpload({ params, body }) {
      const { session_id: sessionId, attempt, bytes, digest } = body
      const standing = await findStanding(database.db, { sessionId, attempt, nodeId: params.node_id })
      if (standing === undefined) throw noSession(sessionId)
      // What was accepted already may be asked for again: its node may not have heard of it.
      if (standing.kind !== 'held' && standing.kind !== 'accepted') throw staleUpload(sessionId, attempt)
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

export function noUpload(uploadId: string): RolloutError {
  return new RolloutError('request.not-found', `There is no upload ${uploadId}; begin it.`)
}

function staleUpload(sessionId: string, attempt: number): RolloutError {
  const message = `Attempt ${attempt} at session ${sessionId} is not this node’s any more; nothing of it will be taken.`
  return new RolloutError('request.stale', message)
}

function toUpload({ uploadId, offset, bytes, digest, isComplete }: UploadState): Upload {
  return { upload_id: uploadId, offset, bytes, digest, is_complete: isComplete }
}
