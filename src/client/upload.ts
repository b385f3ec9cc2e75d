import type { Upload } from '../api/upload-routes.ts'
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

/** How often the server may be of another mind about how much it has, before somebody should look at it. */
const MOST_CONFLICTS = 3

/**
 * Sends a file in parts, from wherever an earlier try ended, also one of an earlier process. What it returns is whole on
 * the server and belongs to nobody until the session is completed with it.
 */
export async function uploadFile(
  client: Pick<Client, 'beginUpload' | 'getUpload' | 'putPart'>,
  { nodeId, sessionId, attempt, bytes, digest, read, partBytes, signal }: UploadSource,
): Promise<Upload> {
  let upload = await client.beginUpload({
    params: { node_id: nodeId },
    body: { session_id: sessionId, attempt, bytes, digest },
    signal,
  })
  const params = { node_id: nodeId, upload_id: upload.upload_id }
  for (let conflicts = 0; !upload.is_complete;) {
    const { offset } = upload
    try {
      // An empty file has one part, too: it is what the server takes as the end.
      const part = await read(offset, Math.min(partBytes, bytes - offset))
      upload = await client.putPart({ params, query: { offset }, body: part, signal })
      if (upload.is_complete || upload.offset > offset) continue
    } catch (error) {
      if (!(error instanceof RolloutError) || error.code !== 'request.conflict') throw error
      upload = await client.getUpload({ params, signal })
    }
    if (++conflicts > MOST_CONFLICTS) {
      const message = `Upload ${params.upload_id} of ${sessionId} does not get beyond byte ${upload.offset} of ${bytes}; has the file changed?`
      throw new RolloutError('request.conflict', message)
    }
  }
  return upload
}
