import { expect, test } from 'vitest'
import { collect, request } from '../../src/gateway/upstreams/upstream.contract.ts'
import type { Upstream } from '../../src/gateway/upstreams/upstream.ts'
import type { ForcedScript } from './forced-script.ts'

/** Answers of the upstream contract that a logits processor can force. */
export const UPSTREAM_SCRIPT = `
scenarios:
  plain: [{ text: "Paris is the capital of France." }]
  unicode: [{ text: "第一行\\n第二行 🐙🐙 and a tab\\t." }]
  calls:
    - text: "Both of them."
      tool_calls:
        - { name: bash, arguments: { command: "echo \\"hi\\" | wc", n: 1.5 } }
        - { name: read, arguments: '{"path":  "a b.txt"}' }
  stop: [{ text: "one two three STOP four five" }]
`

const TOOLS = ['bash', 'read'].map((name) => ({
  type: 'function',
  function: { name, description: `Runs ${name}`, parameters: { type: 'object', properties: {} } },
}))

export interface UpstreamOnEngine {
  /** Opens the upstream, probed, with the script in force. The caller disposes it. */
  open(): Promise<Upstream & AsyncDisposable>
  script(): ForcedScript
  /** Why the tests cannot run; undefined when they can. */
  missing(): string | undefined
}

/** The upstream contract, as far as a real engine can play it: no injected faults, and no log of its own. */
export function testUpstreamOnEngine({ open, script, missing }: UpstreamOnEngine): void {
  const signal = (): AbortSignal => AbortSignal.timeout(600_000)

  const cases = [
    { scenario: 'plain', fields: {}, text: 'Paris is the capital of France.', finish: 'stop' },
    { scenario: 'unicode', fields: {}, text: '第一行\n第二行 🐙🐙 and a tab\t.', finish: 'stop' },
    { scenario: 'calls', fields: { tools: TOOLS }, text: 'Both of them.', finish: 'tool-calls' },
    { scenario: 'stop', fields: { stop: ['STOP'] }, text: 'one two three', finish: 'stop' },
    { scenario: 'plain', fields: { max_tokens: 3 }, text: undefined, finish: 'length' },
    { scenario: 'plain', fields: { n: 2 }, text: 'Paris is the capital of France.', finish: 'stop' },
  ].flatMap((one) => [false, true].map((stream) => ({ ...one, stream, title: title(one, stream) })))

  test.for(cases)('upstream: $title', async ({ scenario, fields, text, finish, stream }, { skip }) => {
    const why = missing()
    if (why !== undefined) return skip(why)
    await using upstream = await open()
    const asked = request(scenario, { temperature: 1, ...fields, stream })
    const { failure, response, text: got } = await collect(upstream, asked, { signal: signal() })
    expect(failure).toBeUndefined()
    expect(response?.grade, String(response?.gradeReasons)).toBe('exact')
    if (text !== undefined) expect(got.trim()).toBe(text)
    const [turn] = script().scenarios[scenario]!
    const forced = turn !== null && turn !== undefined && 'ids' in turn ? turn.ids : []
    expect(response?.choices).toHaveLength('n' in fields ? 2 : 1)
    for (const choice of response?.choices ?? []) {
      expect(choice.finishReason).toBe(finish)
      expect(forced.slice(0, choice.ids.length)).toEqual(Array.from(choice.ids))
      const isWhole = !('stop' in fields) && !('max_tokens' in fields)
      expect(choice.ids.length).toBe(isWhole ? forced.length : choice.ids.length)
      expect(choice.logprobs).toHaveLength(choice.ids.length)
    }
    if (scenario === 'calls') {
      expect(response?.choices[0]?.message.toolCalls).toMatchObject([
        { name: 'bash', arguments: '{"command": "echo \\"hi\\" | wc", "n": 1.5}' },
        { name: 'read', arguments: expect.stringMatching(/^\{"path": {1,2}"a b\.txt"\}$/) },
      ])
    }
  })

  test('upstream: tokens are counted as the engine reads them, and models are listed', async ({ skip }) => {
    const why = missing()
    if (why !== undefined) return skip(why)
    await using upstream = await open()
    const asked = request('calls', { tools: TOOLS })
    const { response } = await collect(upstream, asked, { signal: signal() })
    expect(await upstream.countTokens(asked, signal())).toBe(response?.promptIds.length)
    expect(await upstream.tokenise(asked, signal())).toEqual(response?.promptIds)
    expect(await upstream.listModels(signal())).toHaveLength(1)
  })

  test('upstream: a limit over the context is lowered', async ({ skip }) => {
    const why = missing()
    if (why !== undefined) return skip(why)
    await using upstream = await open()
    const { failure, text } = await collect(upstream, request('plain', { max_tokens: 1_000_000 }), { signal: signal() })
    expect([failure, text]).toEqual([undefined, 'Paris is the capital of France.'])
  })
}

function title({ scenario, fields }: { scenario: string; fields: object }, stream: boolean): string {
  const names = Object.keys(fields).join(', ')
  return `${stream ? 'streamed' : 'whole'}, ${scenario}${names === '' ? '' : ` with ${names}`}`
}
