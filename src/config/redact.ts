const SECRET = '[secret]'

/** Takes user names and passwords out of URLs, and the values of parameters that sound like secrets, wherever in a text. */
export function redactUrls(text: string): string {
  return text
    .replaceAll(/([a-z][a-z0-9+.-]*:\/\/)[^\s/?#]*@/gi, `$1${SECRET}@`)
    .replaceAll(/([?&][^=&#\s]*(?:key|token|secret|password|pwd|auth)[^=&#\s]*=)[^&#\s,"']*/gi, `$1${SECRET}`)
}

/** The same for every text within a value. */
export function redact(value: unknown): unknown {
  if (typeof value === 'string') return redactUrls(value)
  if (Array.isArray(value)) return value.map(redact)
  if (typeof value !== 'object' || value === null) return value
  return Object.fromEntries(Object.entries(value).map(([key, inner]) => [key, redact(inner)]))
}
