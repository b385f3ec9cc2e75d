import type * as z from 'zod'

/** What is wrong with a value of somebody else's, place by place. */
export function describeIssues({ issues }: z.ZodError): string {
  return issues.map(({ path, message }) => `${path.map(String).join('.') || 'it'}: ${message}`).join('; ')
}
