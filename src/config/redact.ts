export const SECRET = '[secret]'

/** Replaces user names and passwords of all URLs in a text, and the values of parameters with names like a secret's. */
export function redactUrls(text: string): string {
  return text
    .replaceAll(/([a-z][a-z0-9+.-]*:\/\/)[^\s/?#]*@/gi, `$1${SECRET}@`)
    .replaceAll(/([?&][^=&#\s]*(?:key|token|secret|password|pwd|auth)[^=&#\s]*=)[^&#\s,"']*/gi, `$1${SECRET}`)
}

/** Redacts every string within a value. */
export function redact(value: unknown): unknown {
  if (typeof value === 'string') return redactUrls(value)
  if (Array.isArray(value)) return value.map(redact)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, redact(inner)]))
}
