import fc from 'fast-check'
import { expect, test } from 'vitest'
import { createRandom } from '../store.contract.ts'
import { RecentPrompts } from './recent-prompts.ts'
import { joinText, RecentTexts } from './recent-texts.ts'
import { resolvePrompts, type StoredPrompt } from './resolve-prompts.ts'

/** Few letters, so that texts share long parts by chance; some are surrogate pairs that differ in one unit. */
const anyText = fc
  .array(fc.constantFrom('a', 'b', 'é', '🎉', '🎊', '\u{1F989}', '\u{1F589}', 'a'.repeat(300), '🎉'.repeat(200)), {
    maxLength: 12,
  })
  .map((parts) => parts.join(''))

test('joinText() restores a request from its middle and base, and the middle survives UTF-8', () => {
  fc.assert(
    fc.property(fc.array(anyText, { maxLength: 20 }), (texts) => {
      const recent = new RecentTexts()
      const restored: string[] = []
      for (const [record, text] of texts.entries()) {
        const { middle, base } = recent.share(record, text)
        const stored = Buffer.from(middle).toString()
        restored.push(base === undefined ? stored : joinText(restored[base.record] ?? '', base, stored))
      }
      expect(restored).toEqual(texts)
    }),
    { numRuns: 500 },
  )
})

test('only the new text of a request is stored, also with other conversations in between', () => {
  const recent = new RecentTexts()
  const tools = `"tools":${'tool'.repeat(500)}`
  const histories = ['main'.repeat(200), 'sub'.repeat(300), 'title'.repeat(100)]
  let record = 0
  for (let round = 0; round < 10; round += 1) {
    for (const [which, history] of histories.entries()) {
      const { middle } = recent.share((record += 1), `${history}${tools}`)
      if (round > 0) expect(middle).toBe(` and ${round}`)
      histories[which] = `${history} and ${round + 1}`
    }
  }
})

test('a prompt is restored from its tail and base, whichever earlier turn it continues', () => {
  const anyTurn = fc.record({
    parent: fc.nat(8),
    choice: fc.nat(2),
    kept: fc.constantFrom(1, 1, 1, 0.9, 0.6, 0.3),
    added: fc.constantFrom(0, 3, 80, 500),
    sampled: fc.array(fc.constantFrom(0, 5, 100), { maxLength: 3 }),
  })
  fc.assert(
    fc.property(fc.array(anyTurn, { maxLength: 25 }), fc.nat(), (turns, seed) => {
      const random = createRandom(seed)
      const ids = (length: number): Int32Array => Int32Array.from({ length }, () => Math.floor(random() * 50_000))
      const recent = new RecentPrompts()
      const originals: { prompt: Int32Array; sampled: Int32Array[] }[] = []
      const stored: StoredPrompt[] = []
      for (const [record, turn] of turns.entries()) {
        const parent = originals[turn.parent]
        const whole = [...(parent?.prompt ?? []), ...(parent?.sampled[turn.choice] ?? [])]
        const prompt = Int32Array.from([...whole.slice(0, Math.floor(whole.length * turn.kept)), ...ids(turn.added)])
        const sampled = turn.sampled.map(ids)
        const { tail, base } = recent.share(record, prompt, sampled)
        const from = base === undefined ? undefined : stored[base.record]
        stored.push({
          base: from && base && { prompt: from, choice: base.choice, length: base.length },
          tail: tail.slice(),
          sampled: sampled.map((choice) => choice.slice()),
        })
        originals.push({ prompt: prompt.slice(), sampled: sampled.map((choice) => choice.slice()) })
        // The caller may reuse its arrays.
        prompt.fill(-1)
        for (const choice of sampled) choice.fill(-1)
      }
      const resolved = resolvePrompts(stored)
      const again = stored.map((prompt) => resolved.get(prompt))
      expect(again.map((turn) => [...(turn?.ids ?? [])])).toEqual(originals.map(({ prompt }) => [...prompt]))
      expect(again.map((turn) => turn?.sampled.map((choice) => [...choice]))).toEqual(
        originals.map(({ sampled }) => sampled.map((choice) => [...choice])),
      )
    }),
    { numRuns: 200 },
  )
})

test('the caller may reuse its arrays', () => {
  const recent = new RecentPrompts()
  const prompt = Int32Array.from({ length: 100 }, (_, n) => n)
  const sampled = new Int32Array(50).fill(1)
  recent.share(0, prompt, [sampled])
  const next = Int32Array.from([...prompt, ...new Int32Array(50).fill(2), 3])
  sampled.fill(2)
  expect(recent.share(1, next, []).base).toEqual({ record: 0, choice: 0, length: 100 })
})

test('a prompt that continues the second choice is not stored as one that continues the first', () => {
  const recent = new RecentPrompts()
  const ids = (from: number, length: number): number[] => Array.from({ length }, (_, n) => from + n)
  const share = (record: number, prompt: number[], ...sampled: number[][]): number | undefined => {
    const choices = sampled.map((choice) => Int32Array.from(choice))
    return recent.share(record, Int32Array.from(prompt), choices).base?.length
  }
  const begin = ids(0, 100)
  const prompt = [...begin, ...ids(1000, 50)]
  share(0, begin, ids(1000, 50))
  expect(share(1, prompt, ids(2000, 50), ids(3000, 50))).toBe(150)
  expect(share(2, [...prompt, ...ids(3000, 50)], ids(4000, 50))).toBe(200)
  expect(share(3, [...prompt, ...ids(2000, 50)], ids(5000, 50))).toBe(150)
})

test('a base that is too short is refused', () => {
  expect(() => joinText('short', { record: 0, prefix: 4, suffix: 3 }, '')).toThrow(RangeError)
})
