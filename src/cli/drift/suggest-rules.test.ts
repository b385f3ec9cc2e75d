import { beforeAll, describe, expect, test } from 'vitest'
import type { SessionRecord } from '../../model/session.ts'
import type { Turn } from '../../model/turn.ts'
import { buildGraph } from '../../trajectory/graph/build-graph.ts'
import { readRequest, requestReader } from '../../compose/read-request.ts'
import { suggestRules, type RenderPrompt, type SuggestResult } from './suggest-rules.ts'
import { loadTinyPrompt } from './tiny-prompt.ts'

let render: RenderPrompt
beforeAll(async () => {
  render = await loadTinyPrompt()
})

type Wire = { role: string; content: string }

function turnOf(index: number, messages: readonly Wire[]): Turn {
  const turn: Turn = {
    id: `turn_${index}`,
    sessionId: 'ses_1',
    index,
    dialect: 'openai-chat',
    startedAt: 10 * index,
    endedAt: 10 * index + 5,
    model: 'm',
    stream: false,
    request: JSON.stringify({ model: 'm', messages }),
    headers: {},
    forced: {},
    delivery: 'delivered',
  }
  const ids = Int32Array.of(300 + index, 2)
  const response = {
    id: 'r',
    model: 'm',
    created: 1,
    promptIds: render(readRequest(turn)!, { opensAnswer: true }),
    choices: [
      {
        index: 0,
        message: { role: 'assistant' as const, content: [{ type: 'text' as const, text: `a${index}` }], toolCalls: [] },
        finishReason: 'stop' as const,
        ids,
        logprobs: new Float32Array(2),
      },
    ],
    grade: 'exact' as const,
    gradeReasons: [],
  }
  return { ...turn, response }
}

/** A conversation of `count` calls with the texts of `system` and `question`. */
function suggestFor(
  calls: number,
  system: (call: number) => string,
  question: (call: number, asked: number) => string = (_, asked) => `question ${asked}?`,
): SuggestResult {
  const turns = Array.from({ length: calls }, (_, call) => {
    const rest = Array.from({ length: call + 1 }, (_unused, asked) => [
      { role: 'user', content: question(call, asked) },
      ...(asked < call ? [{ role: 'assistant', content: `a${asked}` }] : []),
    ])
    return turnOf(call, [{ role: 'system', content: system(call) }, ...rest.flat()])
  })
  const session: SessionRecord = { id: 'ses_1', createdAt: 0, origin: {}, turns, complete: true, incompleteReasons: [] }
  return suggestRules(buildGraph(session, requestReader), requestReader, render)
}

describe('suggestRules()', () => {
  test('finds a time that changes in the system prompt, and proves its rule', () => {
    const { suggestions, proof, refused } = suggestFor(4, (call) => `You help.\nNow: 10:0${call}:00\nBe brief.`)
    expect(suggestions.map(({ rule }) => rule)).toEqual([
      {
        name: 'system-time',
        evidence: 'In a system message "10:00:00" became "10:01:00" from call 1 to 2.',
        where: { role: 'system' },
        find: String.raw`Now: [0-9]{2}:[0-9]{2}:[0-9]{2}\n`,
        replace: 'Now: 10:00:00\n',
      },
    ])
    expect(proof).toEqual({ messages: { of: 3, before: 0, after: 3 }, tokens: { of: 3, before: 0, after: 3 } })
    expect(refused).toEqual([])
  })

  test('suggests a rule for each changing piece, and no rule without effect', () => {
    const { suggestions, proof } = suggestFor(
      3,
      (call) => `Session start.\nSeed: ${call}\nSome words.\nTokens left: ${900 - call}\nGo.`,
    )
    expect(suggestions.map(({ rule }) => rule.name)).toEqual(['system-number', 'system-number-2'])
    expect(proof.messages).toEqual({ of: 2, before: 0, after: 2 })
  })

  test('finds changes in earlier user messages', () => {
    const { suggestions, proof } = suggestFor(
      3,
      () => 'You help.',
      (call, asked) => `<env>count: ${call}</env> question ${asked}`,
    )
    expect(suggestions.map(({ rule }) => rule.where.role)).toEqual(['user'])
    expect(proof.messages.after).toBe(2)
  })

  test('rejects a rule that would change a text that the harness repeats unchanged', () => {
    const { suggestions, refused } = suggestFor(
      3,
      (call) => `Now: 10:0${call}:00\n`,
      (_, asked) => (asked === 0 ? 'Note this. Now: 11:11:11\nDone.' : `q${asked}`),
    )
    // The text has another role, so the rule does not change it.
    expect(refused).toEqual([])
    expect(suggestions).toHaveLength(1)
    const same = suggestFor(
      3,
      () => 'You help.',
      (call, asked) => (asked === 1 ? `Now: 10:0${call}:00\n` : asked === 0 ? 'Fixed. Now: 11:11:11\n' : 'q'),
    )
    expect(same.suggestions).toEqual([])
    expect(same.refused[0]?.why).toContain('message 2 of call 1')
  })

  test('suggests nothing if words change, or if no prompt diverges', () => {
    const moods = ['glad', 'sad', 'mad']
    expect(suggestFor(3, (call) => `Be ${moods[call]}.`).suggestions).toEqual([])
    expect(suggestFor(3, () => 'Be good.')).toMatchObject({ suggestions: [], refused: [] })
  })

  test('suggests nothing if a rule has no effect', () => {
    const moods = ['glad', 'sad', 'mad']
    const { suggestions } = suggestFor(3, (call) => `Be ${moods[call]}. ${'Some words. '.repeat(3)}Now: 10:0${call}`)
    expect(suggestions).toEqual([])
  })
})
