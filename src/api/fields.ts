import * as z from 'zod'
import { arrayOf } from '../lib/json/list-of.ts'
import { SessionId } from '../model/ids.ts'

/**
 * Free text in NVIDIA Polar. Ours must fit in a URL and a log line: no control characters, no lone surrogates, and not the
 * path segments `.` and `..`.
 */
export const TaskId = z
  .string()
  .min(1)
  .max(512)
  .regex(/^(?!\.{1,2}$)[^\p{Cc}\p{Cs}]+$/u, 'must have no control characters and must not be "." or ".."')

/** Used in file names, like session ids. */
export const NodeId = SessionId.describe('1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.')
export const UploadId = SessionId.describe('Returned by the server when the upload begins.')

export const Attempt = z
  .int()
  .min(1)
  .max(1_000_000)
  .describe('Fencing token: incremented for each new lease of the session.')

export const Digest = z
  .string()
  .regex(/^sha256:[0-9a-f]{64}$/, 'must be "sha256:" and 64 hexadecimal digits')
  .describe('Digest of the stored bytes.')

/** A file of a session: a relative, printable path without `..`. */
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
  .describe('Something that a node has or a session requires: `runtime:docker`, `image:swe-42`, `gpu`.')
export const Labels = arrayOf(Label).max(1000)

/** End of a page; opaque to clients. */
export const Cursor = z.string().regex(/^[A-Za-z0-9_.~-]{1,256}$/, 'must be a cursor returned by this API')

export const WaitSeconds = z
  .number()
  .min(0)
  .max(60)
  .default(0)
  .describe('Long poll: seconds to wait for a change before responding.')

export const UnixSeconds = z.number().min(0).describe('Unix seconds.')
export const Count = z.int().min(0)

export function limit(max: number, defaultLimit: number) {
  return z.int().min(1).max(max).default(defaultLimit)
}

/** Cursor of the next page. Absent on the last page. */
export const next = { next_cursor: Cursor.optional() }
