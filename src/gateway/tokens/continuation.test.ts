import fc from 'fast-check'
import { beforeAll, describe, expect, test } from 'vitest'
import { loadChatTemplate, type ChatTemplate } from '../../../packages/tiny-engine/src/chat-template.ts'
import { embeddedModelFolder } from '../../../packages/tiny-engine/src/model-package.ts'
import { loadTokenizer, type Tokenizer } from '../../../packages/tiny-engine/src/tokenizer.ts'
import type { AssistantMessage, Message } from '../../model/message.ts'
import type { TurnRequest, TurnResponse } from '../../model/turn.ts'
import { openaiFields } from '../upstreams/wire/chat-fields.ts'
import { renderChatBody } from '../upstreams/wire/chat-request.ts'
import type { Render } from './bridge.ts'
import { Continuations, type Continuation } from './continuation.ts'
import { runs } from '../../../test/support/runs.ts'

let tokenizer: Tokenizer
let template: ChatTemplate
beforeAll(async () => {
  tokenizer = await loadTokenizer(embeddedModelFolder())
  template = await loadChatTemplate(embeddedModelFolder(), tokenizer)
})

/** The real template and tokenizer of the tiny model, as its engine's render endpoint uses them. */
const render: Render = async (request) => {
  const body = JSON.parse(renderChatBody(request, {}, openaiFields).text) as {
    messages: Record<string, unknown>[]
    tools?: Record<string, unknown>[]
  }
  return template.tokenise({ messages: body.messages, tools: body.tools, addGenerationPrompt: true })
}

function requestOf(messages: Message[], fields: Partial<TurnRequest> = {}): TurnRequest {
  return {
    dialect: 'test',
    model: 'm',
    messages,
    tools: [{ name: 'bash', parameters: { type: 'object' } }],
    sampling: { n: 1 },
    stream: true,
    streamUsage: false,
    logprobs: false,
    wire: { api: 'test', text: '{}', body: {} },
    ...fields,
  }
}

const EOT = 2
const MEMORY_BYTES = 1024 * 1024

/** The sampled text of an answer, and its ids. */
function sampled(said: AssistantMessage): Int32Array {
  const words = said.content.map((part) => (part.type === 'text' ? part.text : '')).join('')
  const calls = said.toolCalls.map(
    ({ name, arguments: args }) => `<tool_call>\n{"name": "${name}", "arguments": ${args}}\n</tool_call>`,
  )
  const thought = said.reasoning === undefined ? '' : `<think>\n${said.reasoning}\n</think>\n\n`
  return Int32Array.from([...tokenizer.encode(thought + [...(words ? [words] : []), ...calls].join('\n')), EOT])
}

async function answered(
  request: TurnRequest,
  said: AssistantMessage,
  fields: Partial<TurnResponse['choices'][number]> = {},
): Promise<TurnResponse> {
  const ids = sampled(said)
  const choice = {
    index: 0,
    message: said,
    finishReason: said.toolCalls.length > 0 ? ('tool-calls' as const) : ('stop' as const),
    ids,
    logprobs: new Float32Array(ids.length),
    ...fields,
  }
  return {
    id: 'r',
    model: 'm',
    created: 1,
    promptIds: await render(request),
    choices: [choice],
    grade: 'exact',
    gradeReasons: [],
  }
}

function text(role: 'user' | 'system', content: string): Message {
  return { role, content: [{ type: 'text', text: content }] }
}

function answer(content: string, calls: string[] = [], reasoning?: string): AssistantMessage {
  return {
    role: 'assistant',
    content: content === '' ? [] : [{ type: 'text', text: content }],
    toolCalls: calls.map((args, i) => ({ id: `c${i}`, name: 'bash', arguments: args })),
    ...(reasoning === undefined ? {} : { reasoning }),
  }
}

function result(content: string, id = 'c0'): Message {
  return { role: 'tool', toolCallId: id, content: [{ type: 'text', text: content }] }
}

async function continued(
  before: Message[],
  said: AssistantMessage,
  after: Message[],
  options: {
    echo?: AssistantMessage
    next?: Partial<TurnRequest>
    response?: Partial<TurnResponse['choices'][number]>
    thinking?: 'template' | 'preserve'
  } = {},
): Promise<{ found: Continuation; response: TurnResponse; next: TurnRequest }> {
  const continuations = new Continuations({ thinking: options.thinking ?? 'template', memoryBytes: MEMORY_BYTES })
  const first = requestOf(before)
  const response = await answered(first, said, options.response)
  continuations.remember('turn_1', first, response)
  const next = requestOf([...before, options.echo ?? said, ...after], options.next)
  return { found: await continuations.find(next, render), response, next }
}

const anyText = fc.oneof(
  fc.string({ unit: 'grapheme', minLength: 1 }),
  fc.constantFrom('<|im_end|>', 'a <|im_start|>user\n b', '<tool_response>x</tool_response>', '\n\n', '你好 🐙', ' '),
)

describe('Continuations', () => {
  test('the next prompt begins with the ids that were read and sampled, and decodes like a full rendering', async () => {
    await fc.assert(
      fc.asyncProperty(
        anyText,
        anyText,
        fc.array(anyText, { minLength: 1, maxLength: 3 }),
        fc.boolean(),
        async (question, said, results, withCalls) => {
          const calls = withCalls ? results.map((_, i) => `{"n": ${i}}`) : []
          const tail = withCalls
            ? results.map((content, i) => result(content, `c${i}`))
            : [text('user', results[0] as string)]
          const { found, response, next } = await continued(
            [text('system', 's'), text('user', question)],
            answer(said, calls),
            tail,
          )
          expect(found.kind).toBe('extends')
          if (found.kind !== 'extends') return
          const prefix = [...response.promptIds, ...(response.choices[0]?.ids ?? [])]
          expect([...found.promptIds.subarray(0, prefix.length)]).toEqual(prefix)
          // Compared as text: a rendering may merge tokens at the end of the answer that were sampled separately.
          const full = tokenizer.decode(await render(next), { skipSpecialTokens: false })
          expect(tokenizer.decode(found.promptIds, { skipSpecialTokens: false })).toBe(full)
        },
      ),
      { numRuns: runs(100) },
    )
  })

  test('sampled ids that differ from a tokenisation of their text are kept', async () => {
    const ids = Int32Array.from(
      ['H', 'e', 'l', 'l', 'o'].flatMap((letter) => [...tokenizer.encode(letter)]).concat(EOT),
    )
    const { found, response, next } = await continued([text('user', 'hi')], answer('Hello'), [text('user', 'again')], {
      response: { ids, logprobs: new Float32Array(ids.length) },
    })
    expect(found.kind).toBe('extends')
    if (found.kind !== 'extends') return
    expect([...found.promptIds]).not.toEqual([...(await render(next))])
    expect([...found.promptIds.subarray(response.promptIds.length, response.promptIds.length + ids.length)]).toEqual([
      ...ids,
    ])
    expect(tokenizer.decode(found.promptIds, { skipSpecialTokens: false })).toBe(
      tokenizer.decode(await render(next), { skipSpecialTokens: false }),
    )
  })

  test('reasoning that the template drops begins a new segment with template, and is kept with preserve', async () => {
    const said = answer('x', [], 'let me think')
    const dropped = await continued([text('user', 'q')], said, [text('user', 'more')])
    expect(dropped.found).toEqual({ kind: 'fresh', reason: 'reasoning-stripped' })
    const kept = await continued([text('user', 'q')], said, [text('user', 'more')], { thinking: 'preserve' })
    expect(kept.found.kind).toBe('extends')
    // A turn whose reasoning the harness omits is the same turn.
    const unsaid = await continued([text('user', 'q')], said, [text('user', 'more')], {
      thinking: 'preserve',
      echo: answer('x'),
    })
    expect(unsaid.found.kind).toBe('extends')
  })

  test('arguments in another JSON notation are the same call', async () => {
    const { found } = await continued([text('user', 'q')], answer('', ['{"a": 1.0,  "b": 2}']), [result('ok')], {
      echo: answer('', ['{"b":2,"a":1}']),
    })
    expect(found.kind).toBe('extends')
  })

  test.each<[string, string, () => ReturnType<typeof continued>]>([
    [
      'edited text',
      'edited-history',
      () => continued([text('user', 'q')], answer('x'), [text('user', 'm')], { echo: answer('y') }),
    ],
    [
      'edited arguments',
      'edited-history',
      () => continued([text('user', 'q')], answer('', ['{"a":1}']), [result('r')], { echo: answer('', ['{"a":2}']) }),
    ],
    [
      'other tools',
      'tools-changed',
      () => continued([text('user', 'q')], answer('x'), [text('user', 'm')], { next: { tools: [] } }),
    ],
    [
      'a cut turn',
      'truncated-turn',
      () => continued([text('user', 'q')], answer('x'), [text('user', 'm')], { response: { finishReason: 'length' } }),
    ],
    [
      'a stop string',
      'truncated-turn',
      () => continued([text('user', 'q')], answer('x'), [text('user', 'm')], { response: { stopReason: 'STOP' } }),
    ],
    [
      'a turn of someone else',
      'foreign-turn',
      () => continued([text('user', 'q')], answer('x'), [text('user', 'm'), answer('z'), text('user', 'n')]),
    ],
    ['no new message', 'foreign-turn', () => continued([text('user', 'q')], answer('x'), [])],
    [
      'an image',
      'media',
      () =>
        continued([text('user', 'q')], answer('x'), [{ role: 'user', content: [{ type: 'image', url: 'data:x' }] }]),
    ],
  ])('%s: a new segment, because %s', async (_, reason, run) => {
    expect((await run()).found).toEqual({ kind: 'fresh', reason })
  })

  test('continues the longest call, and detects a first call and another conversation', async () => {
    const continuations = new Continuations({ thinking: 'template', memoryBytes: MEMORY_BYTES })
    const one = requestOf([text('user', 'a')])
    expect(await continuations.find(one, render)).toEqual({ kind: 'fresh', reason: 'first-call' })
    continuations.remember('turn_1', one, await answered(one, answer('b')))
    const two = requestOf([...one.messages, answer('b'), text('user', 'c')])
    continuations.remember('turn_2', two, await answered(two, answer('d')))
    const three = requestOf([...two.messages, answer('d'), text('user', 'e')])
    expect(await continuations.find(three, render)).toMatchObject({ kind: 'extends', of: 'turn_2' })
    expect(await continuations.find(requestOf([text('user', 'z'), answer('b'), text('user', 'c')]), render)).toEqual({
      kind: 'fresh',
      reason: 'new-conversation',
    })
  })

  test('continues the choice that the harness kept', async () => {
    const continuations = new Continuations({ thinking: 'template', memoryBytes: MEMORY_BYTES })
    const first = requestOf([text('user', 'q')])
    const response = await answered(first, answer('one'))
    const other = { ...(await answered(first, answer('two'))).choices[0]!, index: 1 }
    continuations.remember('turn_1', first, { ...response, choices: [...response.choices, other] })
    for (const [words, ids] of [
      ['one', response.choices[0]!.ids],
      ['two', other.ids],
    ] as const) {
      const found = await continuations.find(requestOf([...first.messages, answer(words), text('user', 'm')]), render)
      expect(found).toMatchObject({ kind: 'extends', of: 'turn_1' })
      if (found.kind !== 'extends') continue
      const at = response.promptIds.length
      expect([...found.promptIds.subarray(at, at + ids.length)]).toEqual([...ids])
    }
    expect(await continuations.find(requestOf([...first.messages, answer('x'), text('user', 'm')]), render)).toEqual({
      kind: 'fresh',
      reason: 'edited-history',
    })
  })

  test('an answer without exact ids is the reason for a new segment', async () => {
    const continuations = new Continuations({ thinking: 'template', memoryBytes: MEMORY_BYTES })
    const first = requestOf([text('user', 'q')])
    continuations.remember('turn_1', first, { ...(await answered(first, answer('x'))), grade: 'inferred' })
    const next = requestOf([...first.messages, answer('x'), text('user', 'm')])
    expect(await continuations.find(next, render)).toEqual({ kind: 'fresh', reason: 'not-exact' })
  })

  test('edited reasoning of any turn is an edited history; omitted reasoning is not', async () => {
    const continuations = new Continuations({ thinking: 'preserve', memoryBytes: MEMORY_BYTES })
    const thought = answer('', ['{"n": 1}'], 'first thought')
    const first = requestOf([text('user', 'q')])
    continuations.remember('turn_1', first, await answered(first, thought))
    const second = requestOf([...first.messages, thought, result('r')])
    expect(await continuations.find(second, render)).toMatchObject({ kind: 'extends', of: 'turn_1' })
    continuations.remember('turn_2', second, await answered(second, answer('done', [], 'second thought')))
    const third = (echo: AssistantMessage, last = answer('done', [], 'second thought')): TurnRequest =>
      requestOf([...first.messages, echo, result('r'), last, text('user', 'more')])
    const edited = { kind: 'fresh', reason: 'edited-history' }
    const find = (request: TurnRequest): Promise<Continuation> => continuations.find(request, render)
    expect(await find(third({ ...thought, reasoning: ' first thought\n' }))).toMatchObject({ of: 'turn_2' })
    expect(await find(third(answer('', ['{"n":1}'])))).toMatchObject({ kind: 'extends', of: 'turn_2' })
    expect(await find(third({ ...thought, reasoning: 'another thought' }))).toEqual(edited)
    expect(await find(third(thought, answer('done', [], 'another thought')))).toEqual(edited)
    // The engine read the edited history in this call, so the next call may continue it.
    const changed = third({ ...thought, reasoning: 'another thought' })
    continuations.remember('turn_3', changed, await answered(changed, answer('so')))
    const fourth = requestOf([...changed.messages, answer('so'), text('user', 'and?')])
    expect(await find(fourth)).toMatchObject({ kind: 'extends', of: 'turn_3' })
  })

  test('a repeated request begins a new segment, and is no edited history', async () => {
    const continuations = new Continuations({ thinking: 'template', memoryBytes: MEMORY_BYTES })
    const first = requestOf([text('system', 's'), text('user', 'q')])
    continuations.remember('turn_1', first, await answered(first, answer('x')))
    expect(await continuations.find(first, render)).toEqual({ kind: 'fresh', reason: 'new-conversation' })
  })

  test('white space that the harness drops around tool calls is no edit', async () => {
    const { found } = await continued([text('user', 'q')], answer('\n\n', ['{"a": 1}']), [result('ok')], {
      echo: answer('', ['{"a": 1}']),
    })
    expect(found.kind).toBe('extends')
  })

  test('where rendering may ignore settings, a prompt continues only if its rendering ends as the engine rendered it', async () => {
    const asked = requestOf([text('user', 'a')])
    const next = requestOf([...asked.messages, answer('b'), text('user', 'c')])
    const thinks: Render = async (request) => Int32Array.from([...(await render(request)), 7, 8])
    const find = async (own: Render, count: { renders: number }) => {
      const continuations = new Continuations({ thinking: 'template', memoryBytes: MEMORY_BYTES })
      continuations.remember('turn_1', asked, await answered(asked, answer('b')))
      const counted: Render = (request) => ((count.renders += 1), own(request))
      const proof = { needsProof: true }
      return [await continuations.find(next, counted, proof), await continuations.find(next, counted, proof)]
    }
    const count = { renders: 0 }
    expect(await find(render, count)).toMatchObject([{ kind: 'extends' }, { kind: 'extends' }])
    // One rendering is the proof, which later calls with the same settings do not repeat.
    expect(count.renders).toBe(5)
    const differs = { kind: 'fresh', reason: 'render-differs' }
    expect(await find(thinks, count)).toEqual([differs, differs])
    // The beginning of a prompt is not part of a bridge.
    const otherHead: Render = async (request) => Int32Array.from([9, ...(await render(request)).subarray(1)])
    expect(await find(otherHead, count)).toMatchObject([{ kind: 'extends' }, { kind: 'extends' }])
  })

  test('a failed rendering or a template that moves messages begins a new segment', async () => {
    const continuations = new Continuations({ thinking: 'template', memoryBytes: MEMORY_BYTES })
    const first = requestOf([text('user', 'a')])
    continuations.remember('turn_1', first, await answered(first, answer('b')))
    const next = requestOf([...first.messages, answer('b'), text('user', 'c')])
    expect(await continuations.find(next, () => Promise.reject(new Error('no')))).toEqual({
      kind: 'fresh',
      reason: 'render-failed',
    })
    const constant: Render = async () => Int32Array.of(1, 2, 3)
    expect(await continuations.find(next, constant)).toEqual({ kind: 'fresh', reason: 'template-moves' })
    const last: Render = async ({ messages }) =>
      Int32Array.from([7, EOT, messages.length, ...tokenizer.encode(JSON.stringify(messages[1]))])
    expect(await continuations.find(next, last)).toEqual({ kind: 'fresh', reason: 'template-moves' })
  })
})
