import * as z from 'zod'
import { SessionId } from '../../model/ids.ts'
import { Attempt, Count, Digest, NodeId, UploadId } from '../fields.ts'
import { json, jsonBody, MIB, route } from '../route.ts'

/** Upper limit for one part; the join response may set a lower one. */
export const MAX_PART_BYTES = 64 * MIB

const Upload = z.object({
  upload_id: UploadId,
  /** Number of stored bytes; the next part starts here. */
  offset: Count,
  bytes: Count,
  digest: Digest,
  /** All bytes are stored, and their digest matches. */
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
 * Results and artifacts are uploaded in parts, so that a lost connection costs one part and not the whole file. An upload that
 * no completed session uses is deleted later.
 */
export const uploadRoutes = {
  beginUpload: route({
    method: 'post',
    path: '/nodes/{node_id}/uploads',
    tag: 'uploads',
    summary: 'Begin an upload, or get its offset.',
    description: '409 `request.stale`: the node no longer holds the attempt, so uploads for it are refused.',
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
    idempotency: 'The same attempt and digest return the same upload.',
    examples: {
      body: { session_id: 'ses_1', attempt: 1, bytes: 1024, digest: exampleUpload.digest },
      answer: exampleUpload,
    },
  }),
  getUpload: route({
    method: 'get',
    path: '/nodes/{node_id}/uploads/{upload_id}',
    tag: 'uploads',
    summary: 'Get the offset of an upload.',
    scopes: ['node'],
    params: byUpload,
    answer: json(Upload),
    errors: [404],
    examples: { answer: exampleUpload },
  }),
  putPart: route({
    method: 'put',
    path: '/nodes/{node_id}/uploads/{upload_id}',
    tag: 'uploads',
    summary: 'Upload the next part.',
    description:
      'The part is durable once the response is sent. 409 `request.conflict`: the part does not start at the offset of the ' +
      'upload, or the complete file does not match its digest, which resets the upload; get the offset and continue from it.',
    scopes: ['node'],
    params: byUpload,
    query: z.strictObject({
      offset: Count,
      digest: Digest.optional().describe('Digest of this part; a part that does not match is refused with 422.'),
    }),
    body: { kind: 'bytes', maxBytes: MAX_PART_BYTES },
    answer: json(Upload),
    errors: [404, 409],
    idempotency: 'A part that is already stored is accepted and has no effect.',
    examples: { answer: { ...exampleUpload, offset: 1024, is_complete: true } },
  }),
}
