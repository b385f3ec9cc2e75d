import type * as z from 'zod'

/** Describes the issues of a value field by field. */
export function describeIssues({ issues }: z.ZodError): string {
  return issues.map(({ path, message }) => `${path.map(String).join('.') || 'it'}: ${message}`).join('; ')
}
