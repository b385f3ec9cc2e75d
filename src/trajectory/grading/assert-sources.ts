import { access } from 'node:fs/promises'
import { describeError } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'

/** Throws `config.invalid` for the operator's files that a task may not use or that cannot be read. */
export async function assertSources(
  files: readonly { source: string }[],
  assertUpload: (source: string) => Promise<void>,
): Promise<void> {
  for (const { source } of files) await assertUpload(source)
  const problems = await Promise.all(files.map(({ source }) => access(source).then(() => undefined, toProblem(source))))
  const missing = problems.filter((problem) => problem !== undefined)
  if (missing.length > 0) throw new RolloutError('config.invalid', missing.join('\n'))
}

function toProblem(source: string): (cause: unknown) => string {
  return (cause) => `evaluator.config: the file ${source} cannot be read: ${describeError(cause)}`
}
