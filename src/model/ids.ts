import * as z from 'zod'

/** Ids reach file names and URLs, so nothing outside this pattern is ever accepted as one. */
const ID_PATTERN = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$/

export const SessionId = z.string().regex(ID_PATTERN, 'must be 1-128 letters, digits, "_", "." or "-"')
export type SessionId = z.infer<typeof SessionId>

/** Where new ids come from; handed to whoever needs one, so that tests can choose them. */
export interface IdSource {
  /** A new id that starts with `prefix` and an underscore; never the same twice. */
  next(prefix: string): string
}

export function isId(value: string): boolean {
  return ID_PATTERN.test(value)
}
