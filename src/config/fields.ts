import * as z from 'zod'

/** Path on this machine. A relative path starts at the folder of the config file; `~/` is the HOME directory. */
export const Path = z.string().min(1).meta({ format: 'path' })

/** May contain a password, so it is redacted in all output. */
export const HttpUrl = z
  .string()
  .regex(/^https?:\/\/[^\s/?#]+[^\s]*$/, 'must be an http or https URL')
  .meta({ format: 'uri' })

/** Capitals only, so that a secret entered by mistake is rejected; the rejection does not print it. */
const EnvName = z
  .string()
  .regex(/^[A-Z_][A-Z0-9_]*$/, 'must be the name of an environment variable in capitals, not its value')
  .meta({ isSensitive: true })

/** Used in file names and log lines. */
export const Name = z
  .string()
  .regex(/^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$/, 'must be 1-64 letters, digits, "_", "." or "-", a letter or digit first')

export const Text = z.string().min(1)
export const Whole = z.int().min(0)
export const AtLeastOne = z.int().min(1)
export const Positive = z.number().positive()

/** The sessions whose files are kept or sent. */
export const Sessions = z.enum(['all', 'failures', 'none'])

/**
 * Two fields that name the source of a secret. The config file never contains the secret, so it can be shared, printed and
 * committed.
 */
export function secret<const N extends string>(name: N, what: string) {
  const file = Path.optional().describe(`File with ${what}; surrounding white space is ignored`)
  const env = EnvName.optional().describe(`Environment variable with ${what}`)
  return { [`${name}_file`]: file, [`${name}_env`]: env } as {
    [K in `${N}_file`]: typeof file
  } & { [K in `${N}_env`]: typeof env }
}

/** Arguments for `refine`: at most one of these keys is set. */
export function atMostOne(...names: readonly string[]) {
  return [
    (value: object) => names.filter((name) => (value as Record<string, unknown>)[name] !== undefined).length <= 1,
    { message: `takes only one of ${names.join(', ')}` },
  ] as const
}

/** Arguments for `refine`: exactly one of these keys is set. */
export function exactlyOne(...names: readonly string[]) {
  return [
    (value: object) => names.filter((name) => (value as Record<string, unknown>)[name] !== undefined).length === 1,
    { message: `needs one of ${names.join(', ')}` },
  ] as const
}
