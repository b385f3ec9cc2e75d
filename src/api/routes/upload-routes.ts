import * as z from 'zod'
import { SessionId } from '../../model/ids.ts'
import { Attempt, Count, Digest, NodeId, UploadId } from '../fields.ts'
import { json, jsonBody, MIB, route } from '../route.ts'

/** What the longest part may be that any server takes; one may ask for less when a node joins. */
export const MOST_PART_BYTES = 64 * MIB

const Upload = z.object({
  upload_id: UploadId,
  /** How many bytes are safely here; the next part begins at this. */
  offset: Count,
  bytes: Count,
  digest: Digest,
  /** All bytes are here and their digest is right. */
  is_complete: z.boolean(),
})
export type Upload = z.infer<typeof Upload>

const byUpload = z.strictObject({ node_id: NodeId, upload_id: UploadId })

const exampleUpload = {
  upload_id: 'upl_1',
  offset: 0,
  bytes: 1024,
  digest: `sha256:${'0'.repeat(64)}`,
  is_complete: false,
}

/**
 * Results and artifacts travel in parts, so that a cut connection costs one part and not the result. An upload that no
 * session was completed with is deleted after some time.
 */
export const uploadRoutes = {
  beginUpload: route({
    method: 'post',
    path: '/nodes/{node_id}/uploads',
    origin: 'polar',
    tag: 'uploads',
    summary: 'Begin to send a file, or find out how much of it is here.',
    description: '409 `request.stale`: the attempt is not this node’s any more, and nothing of it will be taken.',
    scopes: ['node'],
    params: z.strictObject({ node_id: NodeId }),
    body: jsonBody(
      z.strictObject({
        session_id: SessionId,
        attempt: Attempt,
        bytes: Count.max(2 ** 40),
        digest: Digest,
      }),
    ),
    answer: json(Upload),
    errors: [404, 409],
    isIdempotent: true,
    idempotency: 'The same attempt and digest is the same upload.',
    examples: {
      body: { session_id: 'ses_1', attempt: 1, bytes: 1024, digest: exampleUpload.digest },
      answer: exampleUpload,
    },
  }),
  getUpload: route({
    method: 'get',
    path: '/nodes/{node_id}/uploads/{upload_id}',
    origin: 'polar',
    tag: 'uploads',
    summary: 'How much of an upload is here.',
    scopes: ['node'],
    params: byUpload,
    answer: json(Upload),
    errors: [404],
    isIdempotent: true,
    examples: { answer: exampleUpload },
  }),
  putPart: route({
    method: 'put',
    path: '/nodes/{node_id}/uploads/{upload_id}',
    origin: 'polar',
    tag: 'uploads',
    summary: 'Send the next part.',
    description:
      'Stored when answered. 409 `request.conflict`: the part does not begin where the upload ends, or the last one made ' +
      'the whole differ from its digest, which begins the upload anew; ask for the offset and go on from there.',
    scopes: ['node'],
    params: byUpload,
    query: z.strictObject({
      offset: Count,
      digest: Digest.optional().describe('Of this part; a part that differs is refused with 422.'),
    }),
    body: { kind: 'bytes', maxBytes: MOST_PART_BYTES },
    answer: json(Upload),
    errors: [404, 409],
    isIdempotent: true,
    idempotency: 'A part that is here already is taken again and changes nothing.',
    examples: { answer: { ...exampleUpload, offset: 1024, is_complete: true } },
  }),
}
