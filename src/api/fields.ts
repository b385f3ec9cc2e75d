import * as z from 'zod'
import { arrayOf } from '../lib/json/list-of.ts'
import { SessionId } from '../model/ids.ts'

/**
 * Free text in NVIDIA Polar. Ours must fit in a URL and a log line: no control characters, no half of a surrogate pair,
 * and not the two names that a URL takes for a way up.
 */
export const TaskId = z
  .string()
  .min(1)
  .max(512)
  .regex(/^(?!\.{1,2}$)[^\p{Cc}\p{Cs}]+$/u, 'must have no control characters and must not be "." or ".."')

/** Reaches file names, as the ids of sessions do. */
export const NodeId = SessionId.describe('1-128 letters, digits, "_", "." or "-"; begins with a letter or digit.')
export const UploadId = SessionId.describe('Given by the server when the upload was begun.')

export const Attempt = z
  .int()
  .min(1)
  .max(1_000_000)
  .describe('The fencing token: it goes up when a session changes hands.')

export const Digest = z
  .string()
  .regex(/^sha256:[0-9a-f]{64}$/, 'must be "sha256:" and 64 hexadecimal digits')
  .describe('Of the bytes as they are stored.')

/** A file of a session: relative, with no way up, and printable. */
export const FilePath = z
  .string()
  .min(1)
  .max(1024)
  .regex(
    /^(?!\.{1,2}(?:\/|$))[^\p{Cc}\p{Cs}\\/]+(?:\/(?!\.{1,2}(?:\/|$))[^\p{Cc}\p{Cs}\\/]+)*$/u,
    'must be a relative path without ".", "..", backslashes or control characters',
  )

export const Label = z
  .string()
  .regex(/^[A-Za-z0-9][A-Za-z0-9_.:/@=+-]{0,255}$/, 'must be 1-256 letters, digits or any of _.:/@=+-')
  .describe('What a node has, or a session needs: `runtime:docker`, `image:swe-42`, `gpu`.')
export const Labels = arrayOf(Label).max(1000)

/** Where a page ended. Made by the server, and nobody else's business what is in it. */
export const Cursor = z.string().regex(/^[A-Za-z0-9_.~-]{1,256}$/, 'must be a cursor that this API gave out')

export const WaitSeconds = z
  .number()
  .min(0)
  .max(60)
  .default(0)
  .describe('Long poll: seconds to wait for news before answering with what there is.')

export const UnixSeconds = z.number().min(0).describe('Unix seconds.')
export const Count = z.int().min(0)

export function limit(max: number, byDefault: number) {
  return z.int().min(1).max(max).default(byDefault)
}

/** Of a page: where to go on. Absent on the last one. */
export const next = { next_cursor: Cursor.optional() }
