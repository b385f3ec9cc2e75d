import fc from 'fast-check'
import { expect, test } from 'vitest'
import { PromptIdCache } from './prompt-id-cache.ts'
import { toSource } from './scan-bytes.ts'

function read(cache: PromptIdCache, list: string): { ids: number[]; end: number } | undefined {
  const text = `{"prompt_token_ids":[${list}],"x":[1]}`
  const found = cache.read(toSource(Buffer.from(text)), text.indexOf('[') + 1)
  return found && { ids: [...found.ids], end: found.end }
}

/** Prompts of one session: mostly an extension of the previous one, sometimes changed or truncated, sometimes no list. */
const anyPrompts = fc.array(
  fc.record({
    keep: fc.oneof({ weight: 3, arbitrary: fc.constant(1) }, fc.double({ min: 0, max: 1, noNaN: true })),
    add: fc.array(fc.nat(200_000), { maxLength: 700 }),
    change: fc.option(fc.nat(), { freq: 4 }),
    spoil: fc.option(fc.constantFrom(',', ',,', ' ', 'x', '01', '-1', '1.5', '"a"'), { freq: 8 }),
  }),
  { minLength: 1, maxLength: 8 },
)

test('read() returns the ids of the list, independent of earlier lists', () => {
  fc.assert(
    fc.property(anyPrompts, (prompts) => {
      const cache = new PromptIdCache()
      let ids: number[] = []
      for (const { keep, add, change, spoil } of prompts) {
        ids = [...ids.slice(0, Math.round(ids.length * keep)), ...add]
        if (change !== null && ids.length > 0) ids[change % ids.length] = change % 1000
        const list = `${ids.join(',')}${spoil === null ? '' : spoil}`
        const found = read(cache, list)
        if (spoil === null) expect(found).toEqual({ ids, end: 21 + list.length })
        else if (found !== undefined) expect(found.ids).toEqual(JSON.parse(`[${list}]`))
      }
    }),
  )
})

test('read() does not change arrays that it returned before', () => {
  const cache = new PromptIdCache()
  const list = Array.from({ length: 2000 }, (_, i) => i)
  const source = (ids: readonly number[]) => toSource(Buffer.from(`${ids.join(',')}]`))
  const first = cache.read(source(list), 0)?.ids
  const longer = cache.read(source([...list, 7]), 0)?.ids
  cache.read(source(list.map((id) => id + 1)), 0)
  expect([...(first ?? [])]).toEqual(list)
  expect([...(longer ?? [])]).toEqual([...list, 7])
})

test('read() reads a prompt that is too long for the cache', () => {
  const cache = new PromptIdCache()
  const ids = Array.from({ length: 100_000 }, (_, i) => 100_000 + i)
  for (const more of [[], [1], [1, 2]]) expect(read(cache, [...ids, ...more].join(','))?.ids).toEqual([...ids, ...more])
})
