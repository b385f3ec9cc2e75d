import { createReadStream } from 'node:fs'
import { createInterface } from 'node:readline'
import { describeError } from '../../lib/fs/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import { SessionScore } from '../../trajectory/score-session.ts'

const MAX_PROBLEMS = 10

/** Loads a file with one score per line. Throws `config.invalid` with all invalid lines. */
export async function loadScores(path: string): Promise<Map<string, SessionScore>> {
  const scores = new Map<string, SessionScore>()
  const lines = new Map<string, number>()
  const problems: string[] = []
  for await (const [number, line] of numberedLines(path)) {
    if (line.trim() === '') continue
    const parsed = parseScore(line)
    if ('problem' in parsed) {
      problems.push(`line ${number}: ${parsed.problem}`)
      continue
    }
    const id = parsed.score.session_id
    const earlier = lines.get(id)
    if (earlier === undefined) {
      lines.set(id, number)
      scores.set(id, parsed.score)
    } else problems.push(`line ${number}: session ${id} already has a score in line ${earlier}`)
  }
  if (problems.length === 0) return scores
  const shown = problems.slice(0, MAX_PROBLEMS)
  if (shown.length < problems.length) shown.push(`and ${problems.length - shown.length} more`)
  throw new RolloutError('config.invalid', [`Rewards in ${path}:`, ...shown].join('\n  '))
}

function parseScore(line: string): { score: SessionScore } | { problem: string } {
  let value: unknown
  try {
    value = JSON.parse(line)
  } catch (error) {
    return { problem: `not JSON: ${error instanceof Error ? error.message : String(error)}` }
  }
  const parsed = StrictScore.safeParse(value)
  if (parsed.success) return { score: parsed.data }
  const issues = parsed.error.issues.map(({ path, message }) => [path.join('.'), message].filter(Boolean).join(': '))
  return { problem: issues.join('; ') }
}

/** Strict, so that a misspelt key is not a missing reward. */
const StrictScore = SessionScore.strict()

async function* numberedLines(path: string): AsyncGenerator<[number: number, line: string]> {
  const input = createReadStream(path)
  try {
    let number = 0
    for await (const line of createInterface({ input, crlfDelay: Infinity })) {
      number += 1
      yield [number, line]
    }
  } catch (error) {
    throw new RolloutError('config.invalid', `Rewards cannot be read from ${path}: ${describeError(error)}.`, {
      cause: error,
    })
  }
}
