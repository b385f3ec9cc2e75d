import * as z from 'zod'

/** Of this machine. Relative ones are meant from where the file is that says so; `~/` is the home folder. */
export const Path = z.string().min(1).meta({ format: 'path' })

/** May carry a password, so nothing repeats it as it stands. */
export const HttpUrl = z
  .string()
  .regex(/^https?:\/\/[^\s/?#]+[^\s]*$/, 'must be an http or https URL')
  .meta({ format: 'uri' })

/** Capitals only, so that a secret that was put here by mistake is noticed; it is not shown then, either. */
const EnvName = z
  .string()
  .regex(/^[A-Z_][A-Z0-9_]*$/, 'must be the name of an environment variable, in capitals, not what is in it')
  .meta({ isSensitive: true })

/** Reaches file names and log lines. */
export const Name = z
  .string()
  .regex(/^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/, 'must be 1-64 letters, digits, "_", "." or "-", a letter or digit first')

export const Seconds = z.number().positive()

/**
 * The two ways to give a secret. It is never written into the file itself, so the file can be shared, printed and kept in
 * a repository.
 */
export function secret<const N extends string>(name: N, what: string) {
  const file = Path.optional().describe(`File with ${what}; white space around it is left out`)
  const env = EnvName.optional().describe(`Environment variable with ${what}`)
  return { [`${name}_file`]: file, [`${name}_env`]: env } as {
    [K in `${N}_file`]: typeof file
  } & { [K in `${N}_env`]: typeof env }
}

/** For `refine`: that at most one of these keys is there. */
export function atMostOne(...names: readonly string[]) {
  return [
    (value: object) => names.filter((name) => (value as Record<string, unknown>)[name] !== undefined).length <= 1,
    { message: `takes only one of ${names.join(', ')}` },
  ] as const
}

/** For `refine`: that one of these keys is there, and only one. */
export function exactlyOne(...names: readonly string[]) {
  return [
    (value: object) => names.filter((name) => (value as Record<string, unknown>)[name] !== undefined).length === 1,
    { message: `needs one of ${names.join(', ')}` },
  ] as const
}
