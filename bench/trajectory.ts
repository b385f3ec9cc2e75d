import { execFileSync } from 'node:child_process'
import { fileURLToPath } from 'node:url'
import { agentSession } from './support/agent-session.ts'
import { BUILDER_KINDS, buildAll } from './support/build-all.ts'
import { mergeByLists, type ListCall } from './support/list-merging.ts'
import { percentile } from './support/stats.ts'
import { printTitledTable } from './support/table.ts'

const TURNS = 500
const ROUNDS = 5

/** Tokens of the longest prompt. */
const LENGTHS = [50_000, 100_000, 200_000, 500_000, 1_000_000]
const TARGET_LENGTH = 100_000

/** Measures the build of samples from recorded calls: time, growth, and memory beyond the records. */
export async function benchTrajectory(): Promise<void> {
  printTitledTable(`${TURNS} calls of one conversation, each prompt beginning with the previous one and its answer`, [
    ['last prompt', 'tokens in all prompts', ...BUILDER_KINDS, 'prefix_merging, ns a token'],
    ...LENGTHS.map(timesAt),
  ])
  compareWithLists()
  await measureMemory()
}

function timesAt(length: number): string[] {
  const session = agentSession({ turns: TURNS, length, isShared: length > TARGET_LENGTH })
  const tokens = session.turns.reduce((sum, { response }) => sum + (response?.promptIds.length ?? 0), 0)
  const times = BUILDER_KINDS.map((kind) => median(() => buildAll(session, kind)))
  const perToken = ((times[BUILDER_KINDS.indexOf('prefix_merging')] ?? 0) / tokens) * 1e6
  return [thousands(length), `${(tokens / 1e6).toFixed(0)} M`, ...times.map(ms), perToken.toFixed(2)]
}

function compareWithLists(): void {
  const session = agentSession({ turns: TURNS, length: TARGET_LENGTH, isShared: false })
  const calls: ListCall[] = session.turns.map(({ response }) => ({
    prompt: Array.from(response?.promptIds ?? []),
    sampled: Array.from(response?.choices[0]?.ids ?? []),
  }))
  const lists = median(() => mergeByLists(calls))
  const ours = median(() => buildAll(session, 'prefix_merging'))
  printTitledTable(`compared with sliced lists, prompts up to ${thousands(TARGET_LENGTH)} tokens`, [
    ['way', 'time', 'times as fast'],
    ['lists of numbers', ms(lists), '1.0'],
    ['prefix_merging', ms(ours), (lists / ours).toFixed(1)],
  ])
}

/** Each prompt has its own memory, the worst case: a call log shares it. Each builder runs in a separate process. */
function measureMemory(): Promise<void> {
  const none = memoryOf('none')
  printTitledTable(`memory, prompts up to ${thousands(TARGET_LENGTH)} tokens, none sharing memory with another`, [
    ['builder', 'token bytes recorded', 'more at the peak', 'both, times the recorded'],
    ...BUILDER_KINDS.map((kind) => {
      const more = memoryOf(kind).peak - none.peak
      return [kind, megabytes(none.recorded), megabytes(more), ((none.recorded + more) / none.recorded).toFixed(2)]
    }),
  ])
  return Promise.resolve()
}

function memoryOf(kind: string): { recorded: number; peak: number } {
  const script = fileURLToPath(new URL('support/trajectory-memory.ts', import.meta.url))
  const text = execFileSync(process.execPath, [script, kind, String(TARGET_LENGTH)], { encoding: 'utf8' })
  return JSON.parse(text) as { recorded: number; peak: number }
}

function median(work: () => unknown): number {
  const times = Array.from({ length: ROUNDS }, () => {
    const start = performance.now()
    work()
    return performance.now() - start
  })
  return percentile(times, 50)
}

function ms(value: number): string {
  return `${value.toFixed(0)} ms`
}

function thousands(tokens: number): string {
  return `${tokens / 1000}k`
}

function megabytes(bytes: number): string {
  return `${(bytes / 2 ** 20).toFixed(0)} MB`
}
