import { SECRET } from '../../config/redact.ts'

/**
 * Texts that are credentials by their form. Every quantifier is bounded or starts at a fixed prefix: the text comes from
 * agents.
 */
const PATTERNS: readonly RegExp[] = [
  /-----BEGIN (?:[A-Z]{1,20} ){0,3}PRIVATE KEY-----(?:[^-]|-(?!----)){1,8192}-----END (?:[A-Z]{1,20} ){0,3}PRIVATE KEY-----/,
  // AWS, GitHub, GitLab, Slack, Hugging Face, Google, npm, PyPI.
  /\b(?:AKIA|ASIA)[0-9A-Z]{16}\b/,
  /\bgh[pousr]_[A-Za-z0-9]{36,}\b/,
  /\bgithub_pat_[A-Za-z0-9_]{50,}\b/,
  /\bglpat-[A-Za-z0-9_-]{20,}/,
  /\bxox[abeoprs]-[A-Za-z0-9-]{10,}/,
  /\bhf_[A-Za-z0-9]{30,}\b/,
  /\bAIza[0-9A-Za-z_-]{35}/,
  /\bnpm_[A-Za-z0-9]{36}\b/,
  /\bpypi-[A-Za-z0-9_-]{50,}/,
  // OpenAI, Anthropic, and the session keys of the gateway. The digit excludes hyphenated words.
  /\bsk-(?=[A-Za-z_-]{0,100}\d)[A-Za-z0-9_-]{20,}/,
  // JSON web tokens.
  /\beyJ[A-Za-z0-9_-]{10,4096}\.eyJ[A-Za-z0-9_-]{10,4096}\.[A-Za-z0-9_-]{10,4096}/,
  // Passwords in URLs; not placeholders such as ${PASSWORD} or <password>.
  /(?<=\b[a-z][a-z0-9+.-]{1,20}:\/\/[^\s/:@]{1,256}:)[^\s/@${<[][^\s/@]{2,256}(?=@)/,
]

/** Names of variables whose values are secrets. */
const SECRET_NAME = /(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS?)$/i
/** A shorter value may be an ordinary word. */
const MIN_LENGTH = 8

type Variables = Readonly<Record<string, string | undefined>>

/** Returns the values of variables with the name of a secret. A path of a file with a secret is not a secret. */
export function secretValues(...environments: readonly Variables[]): string[] {
  return environments.flatMap((variables) =>
    Object.entries(variables).flatMap(([name, value]) =>
      value !== undefined && value.length >= MIN_LENGTH && SECRET_NAME.test(name) && !value.startsWith('/')
        ? [value]
        : [],
    ),
  )
}

export interface SecretScrubber {
  /** Number of secrets in all strings of a value. */
  count(value: unknown): number
  /** Replaces the secrets in all strings of a value. Keys of objects stay. */
  scrub(value: unknown): unknown
}

/** Finds credentials by their form, and the given values literally. */
export function createSecretScrubber(values: readonly string[]): SecretScrubber {
  // The longest first: a value may contain another.
  const literals = [...new Set(values.flatMap((value) => [value, JSON.stringify(value).slice(1, -1)]))]
    .toSorted((one, other) => other.length - one.length)
    .map((value) => value.replaceAll(/[\\^$.*+?()[\]{}|/-]/g, String.raw`\$&`))
  const pattern = new RegExp([...literals, ...PATTERNS.map(({ source }) => source)].join('|'), 'g')
  const count = (value: unknown): number => {
    if (typeof value === 'string') return value.match(pattern)?.length ?? 0
    if (typeof value !== 'object' || value === null) return 0
    return Object.values(value).reduce<number>((sum, inner) => sum + count(inner), 0)
  }
  const scrub = (value: unknown): unknown => {
    if (typeof value === 'string') return value.replaceAll(pattern, SECRET)
    if (Array.isArray(value)) return value.map(scrub)
    if (typeof value !== 'object' || value === null) return value
    return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, scrub(inner)]))
  }
  return { count, scrub }
}
