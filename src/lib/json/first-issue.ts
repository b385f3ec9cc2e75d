import type * as z from 'zod'

interface Issue {
  path: PropertyKey[]
  message: string
}

/** Returns the first problem of a value that does not match its schema. */
export function firstIssue(error: z.ZodError): Issue {
  return deepestIssue(error.issues[0])
}

/** A union reports an issue for each branch. The deepest issue belongs to the intended branch. */
function deepestIssue(issue: z.core.$ZodIssue | undefined): Issue {
  if (issue === undefined) return { path: [], message: 'not valid' }
  if (issue.code !== 'invalid_union' || issue.errors.length === 0) return issue
  const inner = issue.errors.flatMap((branch) => branch.slice(0, 1).map(deepestIssue))
  const deepest = inner.toSorted((a, b) => b.path.length - a.path.length)[0]
  if (deepest === undefined || deepest.path.length === 0) return issue
  return { path: [...issue.path, ...deepest.path], message: deepest.message }
}

/** Formats a path as in `messages[0].content`. */
export function formatPath(path: readonly PropertyKey[]): string {
  return path.map((step, i) => (typeof step === 'number' ? `[${step}]` : `${i ? '.' : ''}${String(step)}`)).join('')
}
