import { readFile } from 'node:fs/promises'
import type { Profiler } from 'node:inspector'
import { printTitledTable } from './table.ts'

const MOST_FUNCTIONS = 45
const MOST_FILES = 25

/** Prints self time by function and by file, per unit of work. */
export async function printProfile(file: string, { each, count }: { each: string; count: number }): Promise<void> {
  const profile = JSON.parse(await readFile(file, 'utf8')) as Profiler.Profile
  const selfUs = new Map<number, number>()
  profile.samples?.forEach((id, i) => selfUs.set(id, (selfUs.get(id) ?? 0) + (profile.timeDeltas?.[i] ?? 0)))
  const byFunction = new Map<string, number>()
  const byFile = new Map<string, number>()
  let busy = 0
  for (const { id, callFrame } of profile.nodes) {
    const us = selfUs.get(id) ?? 0
    if (callFrame.functionName === '(idle)' || us === 0) continue
    busy += us
    const place = callFrame.url.replace(/^.*\/(src|node_modules)\//, (_, root: string) =>
      root === 'src' ? 'src/' : '',
    )
    add(byFunction, `${callFrame.functionName || '(anonymous)'}  ${place}:${callFrame.lineNumber + 1}`, us)
    add(byFile, place || callFrame.functionName || '(native)', us)
  }
  for (const [title, times, most] of [
    ['self time by function', byFunction, MOST_FUNCTIONS],
    ['self time by file', byFile, MOST_FILES],
  ] as const) {
    const top = [...times].sort(([, a], [, b]) => b - a).slice(0, most)
    printTitledTable(title, [
      ['where', '%', `ms/${each}`],
      ...top.map(([key, us]) => [key, ((100 * us) / busy).toFixed(1), (us / 1000 / count).toFixed(3)]),
    ])
  }
}

function add(times: Map<string, number>, key: string, us: number): void {
  times.set(key, (times.get(key) ?? 0) + us)
}
