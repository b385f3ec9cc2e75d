import type { Upload } from '../api/routes/upload-routes.ts'
import { RolloutError } from '../model/failure.ts'
import type { Client } from './client.ts'

export interface UploadSource {
  nodeId: string
  sessionId: string
  attempt: number
  /** All of it, and the digest of all of it: `sha256:` and hexadecimal digits. */
  bytes: number
  digest: string
  /** Exactly these bytes; asked for again when a part was lost. */
  read: (offset: number, length: number) => Promise<Uint8Array<ArrayBuffer>>
  /** Of one part; what the server said when the node joined. */
  partBytes: number
  signal?: AbortSignal
}

/** How often in a row the server may lose what it had, or be of another mind about it, before somebody should look. */
const MOST_SETBACKS = 3

/**
 * Sends a file in parts, from wherever an earlier try ended, also one of an earlier process. What it returns is whole on
 * the server and belongs to nobody until the session is completed with it.
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
      // An empty file has one part, too: it is what the server takes as the end.
      const part = await read(offset, Math.min(partBytes, bytes - offset))
      upload = await client.putPart({ params, query: { offset }, body: part, signal })
    } catch (error) {
      if (!(error instanceof RolloutError)) throw error
      // The second: nobody added to it for so long that it was swept.
      if (error.code === 'request.conflict') upload = await client.getUpload({ params, signal }).catch(beginAnew(begin))
      else if (error.code === 'request.not-found') upload = await begin()
      else throw error
    }
    // Going over the same bytes again is no progress, or a file that changed would be sent for ever.
    if (upload.is_complete || upload.offset > furthest) {
      furthest = upload.offset
      setbacks = 0
    } else if (upload.offset <= offset && ++setbacks > MOST_SETBACKS) {
      const message = `Upload ${upload_id} of ${sessionId} does not get beyond byte ${furthest} of ${bytes}; has the file changed?`
      throw new RolloutError('request.conflict', message)
    }
  }
  return upload
}

function beginAnew(begin: () => Promise<Upload>): (error: unknown) => Promise<Upload> {
  return (error) => {
    if (error instanceof RolloutError && error.code === 'request.not-found') return begin()
    throw error
  }
}
