import fc from 'fast-check'
import { expect, test } from 'vitest'
import { toyWorld } from '../../../../test/support/random-sessions/world.ts'
import { trialOf } from '../../../../test/support/random-sessions/trial.ts'
import { buildGraph } from '../build-graph.ts'
import { findParents, type ParentRef, type TokenCall } from './find-parents.ts'
import { commonTokens, NearestCall } from './nearest-call.ts'

/** Two different tokens and short prompts, so that nearly every prompt begins with another call by chance. */
const ids = (limits: { minLength?: number; maxLength: number }): fc.Arbitrary<Int32Array> =>
  fc.int32Array({ min: 1, max: 2, ...limits })
const calls: fc.Arbitrary<TokenCall[]> = fc.array(
  fc.record({
    promptIds: ids({ maxLength: 14 }),
    choices: fc.array(fc.record({ ids: ids({ maxLength: 3 }) }), { minLength: 1, maxLength: 3 }),
  }),
  { maxLength: 60 },
)

test('findParents() finds the longest prompt and answer that are a prefix of each prompt, by comparison and by hash', () => {
  fc.assert(
    fc.property(calls, (list) => {
      expect(findParents(list).map(inOrder)).toEqual(
        list.map(({ promptIds }) => inOrder(naiveParents(list, promptIds))),
      )
    }),
    { numRuns: 500 },
  )
})

function naiveParents(list: readonly TokenCall[], promptIds: Int32Array): ParentRef[] {
  const prompt = [...promptIds].join()
  const found = list.flatMap(({ promptIds: first, choices }, call) =>
    choices.flatMap(({ ids: answer }, choice) => {
      const whole = [...first, ...answer]
      const isParent = first.length > 0 && answer.length > 0 && `${prompt},`.startsWith(`${whole.join()},`)
      return isParent ? [{ call, choice, length: whole.length }] : []
    }),
  )
  const longest = Math.max(...found.map(({ length }) => length))
  return found.filter(({ length }) => length === longest).map(({ call, choice }) => ({ call, choice }))
}

function inOrder(refs: readonly ParentRef[]): ParentRef[] {
  return refs.toSorted((a, b) => a.call - b.call || a.choice - b.choice)
}

test('the parents in the graph of a random session are those found by comparing every pair of calls', () => {
  fc.assert(
    fc.property(trialOf(toyWorld, 12), ({ session, reader }) => {
      const { nodes } = buildGraph(session, reader)
      const turns = [...new Set(nodes.map(({ turn }) => turn))]
      const list = turns.map(({ response }) => ({ promptIds: response!.promptIds, choices: response!.choices }))
      for (const node of nodes) {
        const keys = naiveParents(list, node.response.promptIds).map(({ call, choice }) => {
          return `${turns[call]!.id}#${turns[call]!.response!.choices[choice]!.index}`
        })
        if (node.edge.verdict === 'exact') expect(keys).toContain(node.edge.parent.key)
        else expect(keys).toEqual([])
      }
    }),
    { numRuns: 200 },
  )
})

test('NearestCall finds the call with the longest common prefix, across blocks of its index', () => {
  const sequence = fc.record({
    // The length of the common prefix, and the tokens after it.
    common: fc.nat(600),
    rest: ids({ maxLength: 20 }),
    answer: ids({ minLength: 1, maxLength: 5 }),
  })
  fc.assert(
    fc.property(fc.array(sequence, { minLength: 1, maxLength: 7 }), sequence, (added, asked) => {
      const text = Int32Array.from({ length: 600 }, (_, i) => 10 + i)
      const toIds = ({ common, rest }: { common: number; rest: Int32Array }): Int32Array =>
        Int32Array.of(...text.subarray(0, common), ...rest)
      const nearest = new NearestCall()
      const sequences = added.map((one) => ({ promptIds: toIds(one), ids: one.answer }))
      for (const one of sequences) nearest.add(one)
      const prompt = toIds(asked)
      const best = Math.max(...sequences.map((one) => commonTokens(prompt, one)))
      const found = nearest.find(prompt)
      expect(found?.common).toBe(best)
      expect(commonTokens(prompt, sequences[found?.index ?? -1]!)).toBe(best)
    }),
  )
})
