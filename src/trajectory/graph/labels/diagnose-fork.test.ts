import { describe, expect, test } from 'vitest'
import type { Message } from '../../../model/message.ts'
import {
  blindReader,
  call,
  edgeLine,
  nodeOf,
  render,
  result,
  says,
  system,
  toyGraph,
  user,
  type ToyCall,
} from '../../../../test/support/toy-calls.ts'

const tools = ['bash', 'write']
const task = [system('You are a careful worker in a small shop.'), user('Please sort the shelves.')]
const first: ToyCall = {
  id: 'one',
  messages: task,
  tools,
  answer: says('I look.', { calls: [call('bash', { a: 1 })] }),
}
const shelf = result('red, green and blue things lie about')

/** Continues `first` with the answer as the harness sent it back. */
function next(echo = first.answer, more: Partial<ToyCall> = {}): ToyCall {
  return { id: 'two', messages: [...task, echo, shelf], tools, answer: says('Done.'), ...more }
}

test('a prompt that begins with an earlier prompt and its answer is exact, and its request is not parsed', () => {
  const graph = toyGraph([first, next()], {
    ...blindReader,
    readRequest: () => {
      throw new Error('should not be read')
    },
  })
  expect(edgeLine(graph, 'two')).toBe('exact one')
})

describe('a changed answer', () => {
  test('reports re-printed arguments with the number of the message, counted from 1', () => {
    const graph = toyGraph([first, next(says('I look.', { calls: [call('bash', '{ "a": 1 }')] }))])
    expect(edgeLine(graph, 'two')).toBe(
      'edited-history one: message 3 (assistant): the arguments of bash came back re-printed',
    )
    expect(nodeOf(graph, 'two').edge).toMatchObject({
      commonTokens: render(task, tools).length + 'I look.[bash {'.length,
    })
  })

  test.each([
    [says('I look.', { calls: [call('bash', { a: 2 })] }), 'the arguments of bash were changed'],
    [says('I look.', { calls: [call('invalid', { a: 1 })] }), 'the call of bash became invalid'],
    [says('I look.'), '1 tool calls were sampled, 0 came back'],
    [says('I', { calls: first.answer.toolCalls }), 'the text was shortened from 7 to 1 characters'],
    [says('I look. ', { calls: first.answer.toolCalls }), 'white space around the text was changed'],
  ])('%#', (echo, what) => {
    expect(edgeLine(toyGraph([first, next(echo)]), 'two')).toBe(`edited-history one: message 3 (assistant): ${what}`)
  })

  test('an omitted answer is an edited history', () => {
    const graph = toyGraph([
      { ...first, answer: says('Hm.') },
      { ...next(), messages: [...task, user('Please go on.')] },
    ])
    expect(edgeLine(graph, 'two')).toBe(
      'edited-history one: message 3 (user): the answer was left out, a user message follows',
    )
  })

  test('an answer at the token limit is a truncated turn', () => {
    const cut = { ...first, sampled: 'I look.[bash {"a": 1', choice: { finishReason: 'length' as const } }
    expect(edgeLine(toyGraph([cut, next()]), 'two')).toBe(
      'truncated-turn one: message 3 (assistant): the answer was cut at the token limit',
    )
  })

  test('the same text in other tokens is retokenised', () => {
    const graph = toyGraph([{ ...first, sampled: 'I ~ook.[bash {"a":1}]$' }, next()])
    expect(edgeLine(graph, 'two')).toBe(
      'retokenised one: message 3 (assistant): the same text in other tokens from token 3 of 22 on',
    )
  })
})

test('a fork from a call that the gateway has evicted is "forgotten"', () => {
  const graph = toyGraph([
    { ...first, sampled: 'I ~ook.[bash {"a":1}]$' },
    next(first.answer, { turn: { forced: { begins: 'forgotten' } } }),
  ])
  expect(edgeLine(graph, 'two')).toBe('forgotten one: the gateway had removed the earlier call from its memory')
})

describe('reasoning', () => {
  const answer = says('I look.', { reasoning: 'where to begin', calls: first.answer.toolCalls })
  const thinking: ToyCall = { ...first, answer }

  test('is stripped if the harness does not send it back', () => {
    expect(edgeLine(toyGraph([thinking, next()]), 'two')).toBe(
      'reasoning-stripped one: message 3 (assistant): the harness did not send the reasoning back',
    )
  })

  test('is stripped if the chat template omits it', () => {
    const stripped = next(answer, { prompt: render([...task, first.answer, shelf], tools) })
    const detail = 'message 3 (assistant): the chat template leaves the reasoning out'
    expect(edgeLine(toyGraph([thinking, stripped]), 'two')).toBe(`reasoning-stripped one: ${detail}`)
    const noted = next(first.answer, { turn: { forced: { begins: 'reasoning-stripped' } } })
    expect(edgeLine(toyGraph([thinking, noted]), 'two')).toBe(`reasoning-stripped one: ${detail}`)
  })

  test('an edited answer is an edited history, even if the template also omits the reasoning of an earlier turn', () => {
    const second = next(answer, { answer: says('All is in order.') })
    const edited = [...second.messages, says('Nothing is in order.'), user('And the door?')]
    const bare = edited.map((message) => (message === answer ? first.answer : message))
    const third: ToyCall = { id: 'three', messages: edited, tools, prompt: render(bare, tools), answer: says('Shut.') }
    expect(edgeLine(toyGraph([thinking, second, third]), 'three')).toBe(
      'edited-history two: message 5 (assistant): the text was changed',
    )
  })

  test('changed white space is an edited history if the gateway recorded an edited history', () => {
    const trimmed = says('I look. ', { calls: first.answer.toolCalls })
    const noted = next(trimmed, { turn: { forced: { begins: 'edited-history' } } })
    expect(edgeLine(toyGraph([thinking, noted]), 'two')).toBe(
      'edited-history one: message 3 (assistant): white space around the text was changed',
    )
  })

  test('that was changed in an older turn is an edited history, whether or not the template keeps it', () => {
    const second = next(answer, { answer: says('All is in order.') })
    const changed = says('I look.', { reasoning: 'where to end', calls: first.answer.toolCalls })
    const messages = [...task, changed, shelf, second.answer, user('And the door?')]
    const bare = messages.map((message) => (message === changed ? first.answer : message))
    for (const prompt of [render(messages, tools), render(bare, tools)]) {
      const third: ToyCall = { id: 'three', messages, tools, prompt, answer: says('Shut.') }
      expect(edgeLine(toyGraph([thinking, second, third]), 'three')).toBe(
        'edited-history two: message 3 (assistant): the reasoning came back changed',
      )
    }
  })

  test('of an earlier turn is stripped if the template omits it after the next user message', () => {
    const second = next(answer, { answer: says('All is in order.') })
    const messages = [...second.messages, second.answer, user('And the door?')]
    const bare = messages.map((message) => (message === answer ? first.answer : message))
    const third: ToyCall = { id: 'three', messages, tools, prompt: render(bare, tools), answer: says('Shut.') }
    const graph = toyGraph([thinking, second, third])
    expect(edgeLine(graph, 'two')).toBe('exact one')
    expect(edgeLine(graph, 'three')).toBe(
      'reasoning-stripped two: message 3 (assistant): the chat template leaves the reasoning out',
    )
  })
})

describe('a changed setting', () => {
  test.each([
    [['bash', 'write', 'read'], 'tool read was added'],
    [['bash'], 'tool write was taken away'],
    [['write', 'bash'], 'the tools come in another order'],
    [['bash', 'w', 'x', 'y', 'z'], 'tools w, x, y and 1 more were added; tool write was taken away'],
    [[], 'all 2 tools were taken away'],
  ])('reports changed tools: %j', (changed, detail) => {
    expect(edgeLine(toyGraph([first, next(first.answer, { tools: changed })]), 'two')).toBe(
      `tools-changed one: ${detail}`,
    )
  })

  test('reports a changed system prompt', () => {
    const messages = [system('You are quick.'), ...next().messages.slice(1)]
    expect(edgeLine(toyGraph([first, next(first.answer, { messages })]), 'two')).toBe(
      'edited-history one: the system prompt was changed',
    )
  })

  test('finds the deepest call of the conversation, not the call with the most common tokens', () => {
    const second = next()
    const other: ToyCall = {
      id: 'other',
      messages: [system('Nothing alike.'), user('Hm?')],
      tools: ['read'],
      answer: says('No.'),
    }
    const messages = [...second.messages, second.answer, user('And now?')]
    const graph = toyGraph([first, second, other, { id: 'three', messages, tools: ['read'], answer: says('So.') }])
    expect(edgeLine(graph, 'three')).toMatch(/^tools-changed two: tool read was added/)
  })
})

test('reports a template that does not repeat its text before an answer', () => {
  const prompt = `${render(task, tools)}()`
  expect(edgeLine(toyGraph([{ ...first, prompt }, next()]), 'two')).toBe(
    'template-moves one: message 3 (assistant): what the chat template puts in front of an answer is not repeated',
  )
})

test('reports a template that renders the same messages differently', () => {
  const prompt = `!${render(next().messages, tools)}`
  expect(edgeLine(toyGraph([first, next(first.answer, { prompt })]), 'two')).toBe(
    'template-moves one: the same messages are written differently from token 1 on',
  )
})

describe('a changed history', () => {
  const history = [...task, user('The lamp is on the left.'), user('Begin where you like.')]
  const start: ToyCall = { ...first, messages: history }
  const [rules, plea, lamp, like] = history as [Message, Message, Message, Message]

  test.each([
    [[rules, plea, user('Left.'), like], 'message 3 (user): the text was shortened from 24 to 5 characters'],
    [[rules, plea, result('Left.'), like], 'message 3 (tool) stands where a user message was'],
    [[rules, user('Please sort the shelves. Gently.'), lamp, like], 'message 2 (user): the text was added to'],
    [[rules, plea, lamp, user('Begin over there.')], 'message 4 (user): the text was changed'],
  ])('%#', (messages, detail) => {
    const graph = toyGraph([start, { ...next(), messages: [...messages, start.answer, shelf] }])
    expect(edgeLine(graph, 'two')).toBe(`edited-history one: ${detail}`)
  })

  test('after an older answer leaves the prompt an exact continuation of that answer', () => {
    const messages = [...task, first.answer, result('red'), says('Done.'), user('And now?')]
    const graph = toyGraph([first, next(), { id: 'three', messages, tools, answer: says('So.') }])
    expect(edgeLine(graph, 'three')).toBe('exact one')
  })
})

describe('compaction', () => {
  const summary = 'The shelves are half sorted; blue is left.'
  const ask = user('Write down what was done so far.')
  const sum: ToyCall = { id: 'sum', messages: [...next().messages, says('Done.'), ask], tools, answer: says(summary) }
  const fresh = (text: string): ToyCall => ({
    id: 'fresh',
    messages: [task[0]!, user(text)],
    tools,
    answer: says('On.'),
  })

  test('begins a conversation with the answer of an earlier call', () => {
    const graph = toyGraph([first, next(), sum, fresh(`So far: ${summary}`)])
    expect(edgeLine(graph, 'sum')).toBe('exact two')
    expect(edgeLine(graph, 'fresh')).toBe('compaction sum: message 2 is a summary of the conversation before')
  })

  test('matches only the part of the answer that the harness extracts', () => {
    const answer = says(`<analysis>long thoughts</analysis><summary>${summary}</summary>`)
    const graph = toyGraph([first, next(), { ...sum, answer }, fresh(`So far: ${summary}`)])
    expect(edgeLine(graph, 'fresh')).toMatch(/^compaction sum/)
  })

  test('is recognised by its mark if no recorded call wrote the summary', () => {
    const graph = toyGraph([first, next(), fresh(`<summary>${summary}</summary>`)])
    expect(edgeLine(graph, 'fresh')).toBe(
      'compaction two: message 2 is a summary of the conversation before, which no recorded call wrote',
    )
  })

  test('does not include a second agent that receives the answer of the first', () => {
    const headers = (agent: string): Partial<ToyCall> => ({ turn: { headers: { 'x-claude-code-agent-id': agent } } })
    const graph = toyGraph([first, next(), { ...sum, ...headers('a') }, { ...fresh(summary), ...headers('b') }])
    expect(edgeLine(graph, 'fresh')).toBe('new-conversation')
  })
})

describe('the start of a conversation', () => {
  test('shares no more than the system prompt', () => {
    const other: ToyCall = { ...first, id: 'other', messages: [task[0]!, user('Please sweep the floor.')] }
    expect(edgeLine(toyGraph([first, next(), other]), 'other')).toBe('new-conversation')
  })

  test('is a start again when retried; a retried fork is the same fork', () => {
    const forkedAgain = next(says('I look.'))
    const graph = toyGraph([first, { ...first, id: 'again' }, forkedAgain, { ...forkedAgain, id: 'three' }])
    expect(edgeLine(graph, 'again')).toBe('first-call')
    expect(nodeOf(graph, 'three').edge).toBe(nodeOf(graph, 'two').edge)
  })

  test('is still a start when retried after the conversation continued', () => {
    expect(edgeLine(toyGraph([first, next(), { ...first, id: 'again' }]), 'again')).toBe('first-call')
  })

  test('is an edited history when retried with a remark after an empty answer', () => {
    const empty = { ...first, answer: says('') }
    const remark = { ...next(), messages: [task[0]!, user('Please sort the shelves.', ' You said nothing.')] }
    expect(edgeLine(toyGraph([empty, remark]), 'two')).toBe(
      'edited-history one: message 2 (user): a remark was added, and the answer left out',
    )
    expect(edgeLine(toyGraph([first, remark]), 'two')).toBe('new-conversation')
  })

  test('may be a request of another agent that contains the history', () => {
    const messages = [system('You keep notes.'), ...next().messages.slice(1)]
    expect(edgeLine(toyGraph([first, next(first.answer, { messages, tools: ['note'] })]), 'two')).toBe(
      'new-conversation',
    )
  })
})

describe('requests that cannot be parsed', () => {
  test('are distinguished by the length of their common prefix', () => {
    const other: ToyCall = { ...first, id: 'other', messages: [task[0]!, user('Please sweep the floor of the shop.')] }
    const graph = toyGraph([first, next(says('I look.')), other], blindReader)
    expect(edgeLine(graph, 'two')).toMatch(/^unknown one: the prompt goes along with an earlier call for \d+ tokens/)
    expect(edgeLine(graph, 'other')).toBe('new-conversation')
  })

  test('have the reason that the gateway recorded', () => {
    const noted = (begins: string): ToyCall => next(says('I look.'), { turn: { forced: { begins } } })
    expect(edgeLine(toyGraph([first, noted('template-moves')], blindReader), 'two')).toMatch(/^template-moves one/)
    expect(edgeLine(toyGraph([first, noted('foreign-turn')], blindReader), 'two')).toMatch(/^edited-history one/)
    expect(edgeLine(toyGraph([first, noted('new-conversation')], blindReader), 'two')).toBe('new-conversation')
  })
})

test('a history with a changed end continues an older call exactly, and reports the call that it does not continue', () => {
  const second = next(first.answer, { answer: says('More.', { reasoning: 'Let me see.' }) })
  const third: ToyCall = {
    id: 'three',
    messages: [...second.messages, says('More.'), user('Well?')],
    tools,
    answer: says('Done.'),
  }
  const graph = toyGraph([first, second, third])
  expect(edgeLine(graph, 'three')).toBe('exact one')
  expect(nodeOf(graph, 'three').edge).toMatchObject({
    passedOver: {
      from: { turn: { id: 'two' } },
      reason: 'reasoning-stripped',
      detail: 'message 5 (assistant): the harness did not send the reasoning back',
      commonTokens: render(second.messages, tools).length,
    },
  })
})
