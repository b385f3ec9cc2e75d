import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import {
  blindReader,
  call,
  labelsOf,
  nodeOf,
  result,
  says,
  system,
  toyGraph,
  toyReader,
  toySession,
  user,
  type ToyCall,
} from '../../../../test/support/toy-calls.ts'
import { buildGraph } from '../build-graph.ts'

const tools = ['bash', 'send']
const rules = system('You are a careful worker in a small shop.')
const task = [rules, user('Please sort the shelves.')]
const errand = 'Go and count the blue boxes in the yard.'

const one: ToyCall = {
  id: 'one',
  messages: task,
  tools,
  answer: says('', { calls: [call('send', { prompt: errand })] }),
}
const two: ToyCall = {
  id: 'two',
  messages: [...task, one.answer, result('There are nine blue boxes in the yard.')],
  tools,
  answer: says('Nine boxes, all in order.'),
}
const child: ToyCall = {
  id: 'child',
  messages: [system('You run errands.'), user('Be quick.', errand)],
  tools: ['bash'],
  answer: says('', { calls: [call('bash', { command: 'ls' })] }),
}
const grandchild: ToyCall = {
  id: 'child-2',
  messages: [...child.messages, child.answer, result('box box box')],
  tools: ['bash'],
  answer: says('There are nine blue boxes in the yard.'),
}

function labels(calls: readonly ToyCall[], reader = toyReader): Record<string, string> {
  return labelsOf(toyGraph(calls, reader))
}

function evidence(calls: readonly ToyCall[], id: string): string {
  return nodeOf(toyGraph(calls), id).evidence.join('; ')
}

test('a single conversation is main, and its requests are not parsed', () => {
  const reader = {
    ...blindReader,
    readRequest: () => {
      throw new Error('should not be read')
    },
  }
  expect(labels([one, two], reader)).toEqual({ one: 'main', two: 'main' })
})

describe('sub-agents', () => {
  test('are recognised by the tool call that started them and by the call that received their answer', () => {
    const calls = [one, child, grandchild, two]
    expect(labels(calls)).toEqual({ one: 'main', child: 'subagent', 'child-2': 'subagent', two: 'main' })
    expect(evidence(calls, 'child')).toBe(
      'its first message stands in the arguments of send in one; its last answer stands in a message of two',
    )
  })

  test.each([
    ['x-claude-code-agent-id', 'a1', 'subagent'],
    ['x-parent-session-id', 'ses', 'subagent'],
    ['x-codex-parent-thread-id', 'th', 'subagent'],
    ['x-openai-subagent', 'collab_spawn', 'subagent'],
    // No header excludes a call from training: a program in the sandbox can send any header.
    ['x-openai-subagent', 'compact', 'main'],
    ['x-openai-subagent', 'memory_consolidation', 'main'],
    ['x-codex-turn-metadata', '{"request_kind":"compaction"}', 'main'],
  ])('are recognised by headers of the harness: %s: %s', (header, value, label) => {
    const marked = {
      ...one,
      id: 'marked',
      messages: [rules, user('Another thing.')],
      turn: { headers: { [header]: value } },
    }
    expect(labels([one, marked])).toEqual({ one: 'main', marked: label })
    if (label !== 'main') expect(evidence([one, marked], 'marked')).toContain(header)
  })

  test('have other instructions and tools if no tool call started them', () => {
    const unrelated = { ...child, messages: [system('You run errands.'), user('Count the red ones.')] }
    expect(labels([one, unrelated, two])).toEqual({ one: 'main', child: 'subagent', two: 'main' })
  })

  test('are not the second conversation of the main agent', () => {
    expect(labels([one, two, { ...one, id: 'three', messages: [rules, user('Now the floor.')] }])).toEqual({
      one: 'main',
      two: 'main',
      three: 'main',
    })
  })
})

describe('side calls', () => {
  const title: ToyCall = {
    id: 'title',
    messages: [system('You find titles.'), user('Please sort the shelves.')],
    answer: says('Sorting shelves'),
    turn: { model: 'small' },
    request: { responseFormat: { type: 'json-object' } },
  }

  test('have no tools, even when they come first', () => {
    expect(labels([title, one, two])).toEqual({ title: 'side-call', one: 'main', two: 'main' })
    expect(evidence([title, one, two], 'title')).toBe(
      'no tools, while the main conversation has them; asked of small, not of m; its answer must be JSON',
    )
  })

  test('do not include an agent that answers in text next to a conversation with tools', () => {
    const chat: ToyCall = { id: 'chat', messages: task, answer: says('$ curl the gateway') }
    const forged: ToyCall = { id: 'forged', messages: [user('Say hi.')], tools: ['bash'], answer: says('hi') }
    const more: ToyCall = { id: 'more', messages: [...task, chat.answer, user('output: hi')], answer: says('Done.') }
    expect(labels([chat, forged, more])).toEqual({ chat: 'subagent', forged: 'main', more: 'subagent' })
  })

  test('may be calls of a tool, such as a search', () => {
    const search = { ...title, messages: [user(errand)] }
    expect(labels([one, search, two])).toEqual({ one: 'main', title: 'side-call', two: 'main' })
  })

  test('may continue the conversation without its tools', () => {
    const messages = [...two.messages, two.answer, user('Name this conversation.')]
    expect(labels([one, two, { ...title, messages }])).toEqual({ one: 'main', two: 'main', title: 'side-call' })
  })

  test('may contain the conversation under other instructions', () => {
    const messages = [system('You keep notes.'), ...two.messages.slice(1), two.answer, user('Note it.')]
    expect(labels([one, two, { ...title, messages, tools: ['note'] }])).toMatchObject({ title: 'side-call' })
  })

  test('are the short conversations if none has tools', () => {
    const chat = { ...one, tools: [], answer: says('I do.') }
    const more = { ...two, tools: [], messages: [...task, chat.answer, user('Thanks.')] }
    expect(labels([title, chat, more])).toEqual({ title: 'side-call', one: 'main', two: 'main' })
  })
})

describe('compaction', () => {
  const summary = 'Nine boxes were counted; the shelves are left.'
  const fresh: ToyCall = { id: 'fresh', messages: [rules, user(`So far: ${summary}`)], tools, answer: says('On.') }

  test('is the call whose answer a conversation begins with; both conversations are main', () => {
    const ask = [...two.messages, two.answer, user('Write down what was done.')]
    const calls = [one, two, { id: 'sum', messages: ask, tools, answer: says(summary) }, fresh]
    expect(labels(calls)).toEqual({ one: 'main', two: 'main', sum: 'compaction', fresh: 'main' })
    expect(evidence(calls, 'sum')).toBe('its answer is the summary that fresh begins with')
  })

  test('is a call for which the gateway itself wrote the instruction', () => {
    const sum: ToyCall = {
      id: 'sum',
      messages: [...two.messages, two.answer],
      tools,
      answer: says('Sealed.'),
      turn: { forced: { purpose: 'compaction' } },
    }
    expect(labels([one, two, sum])).toEqual({ one: 'main', two: 'main', sum: 'compaction' })
  })

  test('may be a separate conversation with the history as text', () => {
    const sum = { id: 'sum', messages: [system('You sum up.'), user('send: nine boxes')], answer: says(summary) }
    expect(labels([one, two, sum, fresh])).toEqual({ one: 'main', two: 'main', sum: 'compaction', fresh: 'main' })
  })
})

describe('compaction instructions', () => {
  const summaryCall = (text: string): ToyCall => ({
    id: 'sum',
    messages: [...two.messages, two.answer, user(text)],
    tools,
    answer: says('This text is not used by any later call.'),
  })

  test.each([
    ['Claude Code', 'CRITICAL: Respond with TEXT ONLY. Do not call tools.'],
    ['Codex', 'You are performing a CONTEXT CHECKPOINT COMPACTION. Write a summary.'],
    ['Gemini CLI', 'First, reason in your scratchpad. Then, generate the <state_snapshot>.'],
    ['Qwen Code', 'Do not call tools. First, reason. Then, produce the <state_snapshot> XML.'],
    ['pi', 'Create a structured context checkpoint summary for another model.'],
  ])('%s: a call with its instruction is a compaction, even if no call uses the answer', (harness, text) => {
    const calls = [one, two, summaryCall(text)]
    expect(labels(calls)).toEqual({ one: 'main', two: 'main', sum: 'compaction' })
    expect(evidence(calls, 'sum')).toBe(`its instruction is the one by which ${harness} compacts`)
  })

  test.each([
    ['OpenCode', 'You are a context summarization agent. Be brief.'],
    ['pi', 'You are a context summarization assistant. Be brief.'],
    [
      'Gemini CLI',
      'You are a specialized component for distilling chat history into a structured XML <state_snapshot>.',
    ],
  ])('%s: also as the system prompt of a separate call', (harness, text) => {
    const sum: ToyCall = { ...summaryCall(''), messages: [system(text), user('user: sort the shelves')], tools: [] }
    expect(labels([one, two, sum])).toEqual({ one: 'main', two: 'main', sum: 'compaction' })
    expect(evidence([one, two, sum], 'sum')).toContain(harness)
  })

  test('both calls of Gemini CLI are compactions: the summary and its review', () => {
    const first = summaryCall('Then, generate the <state_snapshot>.')
    const review: ToyCall = {
      ...first,
      id: 'review',
      messages: [...first.messages, first.answer, user('Critically evaluate the <state_snapshot> you wrote.')],
    }
    expect(labels([one, two, first, review])).toEqual({
      one: 'main',
      two: 'main',
      sum: 'compaction',
      review: 'compaction',
    })
  })

  test('an instruction in the output of a command excludes no call of an ongoing conversation', () => {
    const printed = user('$ cat notes\nThen, generate the <state_snapshot>. produce the <state_snapshot> XML')
    const calls: ToyCall[] = [{ id: 'call-0', messages: task, tools: [], answer: says('cat notes') }]
    for (let i = 1; i < 6; i += 1) {
      const before = calls[i - 1] as ToyCall
      const messages = [...before.messages, before.answer, printed]
      calls.push({ id: `call-${i}`, messages, tools: [], answer: says(`step ${i}: cat notes`) })
    }
    // Only the last call and its review look like a compaction whose summary was not used.
    expect(Object.values(labels(calls))).toEqual(['main', 'main', 'main', 'main', 'compaction', 'compaction'])
  })

  test('a conversation about such instructions is not a compaction', () => {
    const chat = summaryCall('What does <state_snapshot> mean in a context summarization?')
    expect(labels([one, two, chat])).toMatchObject({ sum: 'main' })
    const after: ToyCall = { ...one, messages: [rules, user('<state_snapshot>Nine boxes.</state_snapshot>')] }
    expect(labels([after])).toEqual({ one: 'main' })
  })
})

describe('retries', () => {
  const again = (id: string, turn: ToyCall['turn'] = {}): ToyCall => ({ ...one, id, answer: says('Hm.'), turn })

  test('the continued answer keeps its label', () => {
    expect(labels([one, again('again'), two])).toEqual({ one: 'main', again: 'retry', two: 'main' })
    expect(labels([again('again'), one, two])).toEqual({ one: 'main', again: 'retry', two: 'main' })
    expect(evidence([again('again'), one, two], 'again')).toBe('the same request as one, which was gone on from')
  })

  test('without a continued answer, the last delivered answer keeps its label', () => {
    const failure = { code: 'upstream.reset', message: 'gone', status: 502 } as const
    expect(labels([one, again('b'), again('c', { delivery: 'undelivered' }), again('d', { failure })])).toEqual({
      one: 'retry',
      b: 'main',
      c: 'retry',
      d: 'retry',
    })
  })

  test('a request with a remark is the same request', () => {
    const empty = { ...one, answer: says('') }
    const remark = { ...one, id: 'remark', messages: [rules, user('Please sort the shelves.', ' You said nothing.')] }
    expect(labels([empty, remark])).toEqual({ one: 'retry', remark: 'main' })
  })

  test('are recognised by retryOf', () => {
    const other = { ...one, id: 'other', prompt: 'written in another way', turn: { retryOf: 'one' } }
    expect(labels([one, other])).toEqual({ one: 'retry', other: 'main' })
  })
})

describe('several choices', () => {
  const both: ToyCall = { ...one, others: [says('I would rather not.')] }

  test('choices that were not continued are abandoned', () => {
    expect(labels([both, two])).toEqual({ 'one#0': 'main', 'one#1': 'abandoned', two: 'main' })
  })

  test('all choices keep their label if none was continued', () => {
    expect(labels([both])).toEqual({ 'one#0': 'main', 'one#1': 'main' })
  })
})

test('calls recorded before the calls that they continue keep their labels', () => {
  const three: ToyCall = {
    id: 'three',
    messages: [...two.messages, two.answer, user('Thanks.')],
    tools,
    answer: says('You are welcome.'),
  }
  const main = { one: 'main', two: 'main', three: 'main' }
  for (const calls of [
    [three, one, two],
    [three, two, one],
    [two, three, one],
    [two, one, three],
    [one, three, two],
  ]) {
    const graph = toyGraph(calls)
    expect(labelsOf(graph)).toEqual(main)
    expect(graph.nodes.map(({ turn }) => turn.id)).toEqual(['one', 'two', 'three'])
    expect(graph.nodes.map(({ edge }) => edge.verdict)).toEqual(['root', 'exact', 'exact'])
  }
})

test('calls recorded before the calls that they continue keep their labels beside a sub-agent', () => {
  const calls = [two, one, grandchild, child]
  expect(labels(calls)).toEqual({ one: 'main', child: 'subagent', 'child-2': 'subagent', two: 'main' })
})

describe('abandoned answers', () => {
  const third = (id: string, text: string): ToyCall => ({
    id,
    messages: [...two.messages, two.answer, user(text)],
    tools,
    answer: says(`To ${text}: yes.`),
  })

  test('are answers that no call continues although the conversation continues', () => {
    expect(labels([one, two, third('left', 'Shut the door.'), third('taken', 'Open it.')])).toMatchObject({
      left: 'abandoned',
      taken: 'main',
    })
  })

  test('concurrent branches are not abandoned', () => {
    const turn = { startedAt: 2000, endedAt: 5000 }
    expect(labels([one, two, { ...third('left', 'Shut the door.'), turn }, third('taken', 'Open it.')])).toMatchObject({
      left: 'main',
      taken: 'main',
    })
  })

  test('an answer in a later history is not abandoned, even if a message before it was changed', () => {
    const messages = [...task, one.answer, result('Nine.'), two.answer, user('Thanks.')]
    expect(labels([one, two, { id: 'three', messages, tools, answer: says('So.') }])).toEqual({
      one: 'main',
      two: 'main',
      three: 'main',
    })
  })

  test('an answer that was sent back changed is not abandoned', () => {
    const messages = [...two.messages, says('Nine boxes.'), user('Thanks.')]
    expect(
      labels([
        { ...one, messages: two.messages, answer: two.answer },
        { ...one, id: 'b', messages },
      ]),
    ).toEqual({
      one: 'main',
      b: 'main',
    })
  })
})

test('calls whose request cannot be parsed are main', () => {
  expect(labels([one, child, grandchild, two], blindReader)).toEqual({
    one: 'main',
    child: 'main',
    'child-2': 'main',
    two: 'main',
  })
})

// --- order ------------------------------------------------------------------------------------------------------------

const summary = says('Nine boxes were counted; the shelves are left.')
const pool: readonly ToyCall[] = [
  { id: 'title', messages: [system('You find titles.'), user('Sort?')], answer: says('Sorting shelves') },
  one,
  { ...one, id: 'again', answer: says('Hm.') },
  { ...child, turn: { headers: { 'x-parent-session-id': 'p' } } },
  grandchild,
  { ...two, others: [says('No boxes at all.')] },
  { id: 'left', messages: [...two.messages, two.answer, user('Door?')], tools, answer: says('Shut.') },
  { id: 'less', messages: [...two.messages, says('Nine boxes'), user('Yes?')], tools, answer: says('Yes.') },
  { id: 'sum', messages: [...two.messages, two.answer, user('Sum up.')], tools: [], answer: summary },
  {
    id: 'fresh',
    messages: [rules, user('So far: Nine boxes were counted; the shelves are left.')],
    tools,
    answer: says('On.'),
  },
  { ...one, id: 'remark', messages: [rules, user('Please sort the shelves. Now.')], answer: says('') },
]

test('the order of the records changes nothing', () => {
  const seen = new Set<string>()
  fc.assert(
    fc.property(
      fc.subarray([...pool], { minLength: 1 }).chain((calls) => {
        const { turns } = toySession(calls)
        return fc.record({ calls: fc.constant(calls), turns: fc.shuffledSubarray(turns, { minLength: turns.length }) })
      }),
      ({ calls, turns }) => {
        const facts = (graph: ReturnType<typeof toyGraph>): unknown =>
          graph.nodes.map(({ key, label, evidence: grounds, edge }) => {
            seen.add(label)
            const from = edge.verdict === 'exact' ? edge.parent : edge.verdict === 'forked' ? edge.from : undefined
            return { key, label, grounds, ...edge, parent: undefined, from: from?.key }
          })
        const session = toySession(calls)
        expect(facts(buildGraph({ ...session, turns }, toyReader))).toEqual(facts(buildGraph(session, toyReader)))
      },
    ),
    { numRuns: 300 },
  )
  expect([...seen].toSorted()).toEqual(['abandoned', 'compaction', 'main', 'retry', 'side-call', 'subagent'])
})
