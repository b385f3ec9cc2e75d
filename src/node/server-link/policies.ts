import * as z from 'zod'

/** Selects the files that are sent to the server besides the result. */
export const UploadPolicy = z.strictObject({
  artifacts: z
    .enum(['all', 'failures', 'none'])
    .default('all')
    .describe('Sessions whose artifacts are sent to the server'),
  callLog: z.enum(['all', 'failures', 'none']).default('all').describe('Sessions whose call log is sent to the server'),
  atOnce: z.int().min(1).max(64).default(8).describe('Sessions delivered at a time'),
})
export type UploadPolicy = z.infer<typeof UploadPolicy>

/** Limits the folders that a node keeps of sessions that were delivered, released or lost. */
export const RetentionPolicy = z.strictObject({
  sessions: z.int().min(0).default(200).describe('Delivered sessions that are kept; 0: none'),
  totalMb: z.number().min(0).default(2048).describe('Disk limit of kept sessions in MB'),
  hours: z.number().positive().default(72).describe('How long delivered sessions are kept, in hours'),
})
export type RetentionPolicy = z.infer<typeof RetentionPolicy>
