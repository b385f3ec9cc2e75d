import type { Choice, Turn } from '../../../src/model/turn.ts'
import type { RecordScript } from './script.ts'

/** Duplicates some records and drops others. */
export function corruptRecords(turns: readonly Turn[], { duplicates, drops }: RecordScript): Turn[] {
  const doubles = duplicates.flatMap(({ at, as }) => {
    const turn = turns[at % turns.length]
    return turn === undefined ? [] : [duplicateOf(turn, as)]
  })
  const all = [...turns, ...doubles]
  const dropped = new Set(drops.map((at) => at % all.length))
  return all.filter((_, i) => !dropped.has(i))
}

/** Sorts by keys from a script, which shrink to the original order. */
export function orderRecords(turns: readonly Turn[], order: readonly number[]): Turn[] {
  return turns
    .map((turn, i) => ({ turn, key: order[i % Math.max(1, order.length)] ?? 0 }))
    .toSorted((a, b) => a.key - b.key)
    .map(({ turn }) => turn)
}

const FAILURE = { code: 'upstream.reset', message: 'the engine went away', status: 502 } as const

function duplicateOf(turn: Turn, as: RecordScript['duplicates'][number]['as']): Turn {
  switch (as) {
    case 'same':
      return { ...turn }
    case 'intent':
      return { ...turn, endedAt: undefined, response: undefined, failure: undefined, delivery: 'unknown' }
    case 'partial':
      return turn.response === undefined
        ? { ...turn }
        : { ...turn, response: { ...turn.response, choices: turn.response.choices.map(half) } }
    case 'undelivered':
      return { ...turn, delivery: 'undelivered' }
    case 'failed':
      return { ...turn, failure: FAILURE, delivery: 'undelivered' }
  }
}

function half(choice: Choice): Choice {
  if (choice.ids.length === 0) return choice
  const length = choice.ids.length >> 1
  const ids = choice.ids.subarray(0, length)
  const weightSpans = choice.weightSpans?.filter(({ from }) => from < length)
  return {
    ...choice,
    ids,
    logprobs: choice.logprobs.subarray(0, length),
    finishReason: 'cut',
    weightSpans: weightSpans === undefined || weightSpans.length === 0 ? undefined : weightSpans,
  }
}
