import * as z from 'zod'

/** Ids are used in file names and URLs, so no other characters are accepted. */
const ID_PATTERN = /^[A-Za-z0-9][A-Za-z0-9_.-]{0,127}$/

export const SessionId = z.string().regex(ID_PATTERN, 'must be 1-128 letters, digits, "_", "." or "-"')
export type SessionId = z.infer<typeof SessionId>

/** Source of new ids. Passed as a dependency, so that tests can choose ids. */
export interface IdSource {
  /** Returns a new, unique id that starts with `prefix` and an underscore. */
  next(prefix: string): string
}

export function isId(value: string): boolean {
  return ID_PATTERN.test(value)
}
