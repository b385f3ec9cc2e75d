import * as z from 'zod'

/**
 * Like `z.array(schema)`, but reports the first wrong element only. `z.array` collects an issue for every wrong element,
 * so a body of a few megabytes from a hostile client costs seconds and gigabytes.
 */
export function listOf<T extends z.ZodType>(schema: T, { min = 0 }: { min?: number } = {}) {
  return z
    .array(z.unknown())
    .min(min)
    .transform((elements, context): z.output<T>[] => {
      const parsed: z.output<T>[] = []
      for (const [index, element] of elements.entries()) {
        const result = schema.safeParse(element)
        if (!result.success) {
          const [issue] = result.error.issues
          context.issues.push({
            ...issue,
            input: element,
            path: [index, ...(issue?.path ?? [])],
          } as z.core.$ZodRawIssue)
          return z.NEVER
        }
        parsed.push(result.data)
      }
      return parsed
    })
}
