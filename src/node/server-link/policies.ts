import * as z from 'zod'

/** What goes to the server besides the result. */
export const UploadPolicy = z.strictObject({
  artifacts: z
    .enum(['all', 'failures', 'none'])
    .default('all')
    .describe('Of which sessions the kept artifacts are sent to the server'),
  callLog: z
    .enum(['all', 'failures', 'none'])
    .default('all')
    .describe('Of which sessions the recorded calls are sent to the server'),
  atOnce: z.int().min(1).max(64).default(8).describe('Sessions that are being delivered at a time'),
})
export type UploadPolicy = z.infer<typeof UploadPolicy>

/** What a node keeps of sessions that are no longer its own: delivered, given back, or passed to another. */
export const RetentionPolicy = z.strictObject({
  sessions: z.int().min(0).default(200).describe('Most sessions that are kept after they were delivered; 0: none'),
  totalMb: z.number().min(0).default(2048).describe('Most that is kept of them in all'),
  hours: z.number().positive().default(72).describe('How long they are kept at most'),
})
export type RetentionPolicy = z.infer<typeof RetentionPolicy>
