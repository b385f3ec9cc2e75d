import type { Upload } from '../api/routes/upload-routes.ts'
import { RolloutError } from '../model/failure.ts'
import type { Client } from './client.ts'

export interface UploadSource {
  nodeId: string
  sessionId: string
  attempt: number
  /** Size of the file. `digest`: `sha256:` and hexadecimal digits, of the whole file. */
  bytes: number
  digest: string
  /** Must return exactly these bytes; called again for a lost part. */
  read: (offset: number, length: number) => Promise<Uint8Array<ArrayBuffer>>
  /** Size of one part, from the join response. */
  partBytes: number
  signal?: AbortSignal
}

/** Consecutive times that the server may lose or reject bytes before the upload fails. */
const MAX_SETBACKS = 3

/**
 * Uploads a file in parts, and resumes an earlier try, also of an earlier process. The returned upload is complete, and is used
 * once a session is completed with it.
 */
export async function uploadFile(
  client: Pick<Client, 'beginUpload' | 'getUpload' | 'putPart'>,
  { nodeId, sessionId, attempt, bytes, digest, read, partBytes, signal }: UploadSource,
): Promise<Upload> {
  const begin = (): Promise<Upload> =>
    client.beginUpload({
      params: { node_id: nodeId },
      body: { session_id: sessionId, attempt, bytes, digest },
      signal,
    })
  let upload = await begin()
  let furthest = upload.offset
  for (let setbacks = 0; !upload.is_complete;) {
    const { offset, upload_id } = upload
    const params = { node_id: nodeId, upload_id }
    try {
      // An empty file has one empty part, which completes the upload.
      const part = await read(offset, Math.min(partBytes, bytes - offset))
      upload = await client.putPart({ params, query: { offset }, body: part, signal })
    } catch (error) {
      if (!(error instanceof RolloutError)) throw error
      // `request.not-found`: the server has swept an upload without progress.
      if (error.code === 'request.conflict')
        upload = await client.getUpload({ params, signal }).catch(beginAgain(begin))
      else if (error.code === 'request.not-found') upload = await begin()
      else throw error
    }
    // Sending the same bytes again is no progress: a changed file would be sent forever.
    if (upload.is_complete || upload.offset > furthest) {
      furthest = upload.offset
      setbacks = 0
    } else if (upload.offset <= offset && ++setbacks > MAX_SETBACKS) {
      const message = `Upload ${upload_id} of ${sessionId} makes no progress beyond byte ${furthest} of ${bytes}; the file may have changed.`
      throw new RolloutError('request.conflict', message)
    }
  }
  return upload
}

function beginAgain(begin: () => Promise<Upload>): (error: unknown) => Promise<Upload> {
  return (error) => {
    if (error instanceof RolloutError && error.code === 'request.not-found') return begin()
    throw error
  }
}
