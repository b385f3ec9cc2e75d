import assert from 'node:assert/strict'
import {
  assertCallsBeforeResults,
  isTrained,
  textOf,
  type ExpectedMessage,
  type WireMessage,
} from './message-oracle.ts'

/** A row of an export, as read from the file. */
export type Row = Readonly<Record<string, unknown>>

export const TEXT_FORMATS = ['jsonl', 'trl', 'parquet', 'slime', 'verl', 'openai_sft', 'sharegpt', 'nemo_gym'] as const
export type TextFormat = (typeof TEXT_FORMATS)[number]

/** Throws unless the row contains exactly the expected messages in order, and marks the trained messages. */
export function assertRowMessages(format: TextFormat, row: Row, expected: readonly ExpectedMessage[]): void {
  switch (format) {
    case 'jsonl':
      return assertChatRow(row['prompt_messages'], row['response_messages'], callsIn(row['metadata']), expected)
    case 'trl':
      return assertChatRow(row['prompt'], row['completion'], callsIn(row['metadata']), expected)
    case 'slime': {
      const { response_messages: response } = row['metadata'] as Row
      return assertChatRow(row['prompt'], response, callsIn(row['metadata']), expected)
    }
    case 'parquet': {
      const [prompt, response] = ['prompt_messages', 'response_messages'].map((name) => parse(row[name]))
      return assertChatRow(prompt, response, callsIn(row), expected)
    }
    case 'verl': {
      const metadata = parse((row['extra_fields'] as Row)['metadata']) as Row
      const { prompt, response } = metadata['messages'] as Row
      return assertChatRow(prompt, response, callsIn(metadata), expected)
    }
    case 'openai_sft':
      return assertSftRow(row['messages'] as (WireMessage & { weight?: number })[], expected)
    case 'sharegpt':
      return assertShareGptRow(row['conversations'] as ShareGptEntry[], row['system'] as string, expected)
    case 'nemo_gym':
      return assertNemoGymRow(row, expected)
  }
}

/** Returns the sample of a row; undefined for formats without a field for it. */
export function sampleIdOf(format: TextFormat, row: Row): string | undefined {
  const inside: Partial<Record<TextFormat, string>> = {
    jsonl: 'metadata',
    trl: 'metadata',
    slime: 'metadata',
    verl: 'extra_fields',
    nemo_gym: 'polar',
  }
  const owner = inside[format] === undefined ? row : (row[inside[format]] as Row)
  return owner['sample_id'] as string | undefined
}

// --- Chat Completions format ------------------------------------------------------------------------------------------

interface RowCallField {
  trained: boolean
  response_message: number
}

function callsIn(owner: unknown): RowCallField[] {
  return (owner as { calls: RowCallField[] }).calls
}

function parse(text: unknown): unknown {
  return JSON.parse(text as string)
}

function assertChatRow(
  prompt: unknown,
  response: unknown,
  calls: readonly RowCallField[],
  expected: readonly ExpectedMessage[],
): void {
  const [before, after] = [prompt as WireMessage[], response as WireMessage[]]
  const messages = [...before, ...after]
  assert.deepEqual(messages, messagesOf(expected))
  assertCallsBeforeResults(messages, 'a row')
  const named = calls.map(({ trained, response_message: at }) => [before.length + at, trained])
  const wanted = expected.flatMap((message, at) => message.calls.map((call) => [at, call.isTrained]))
  assert.deepEqual(named, wanted, 'where the answers of the calls stand')
}

function messagesOf(expected: readonly ExpectedMessage[]): WireMessage[] {
  return expected.map(({ message }) => message)
}

function assertSftRow(
  messages: readonly (WireMessage & { weight?: number })[],
  expected: readonly ExpectedMessage[],
): void {
  assert.deepEqual(
    messages.map(({ weight: _, ...message }) => message),
    messagesOf(expected),
  )
  assertCallsBeforeResults(messages, 'a row')
  const weights = expected.map((one) => (one.message.role === 'assistant' ? Number(isTrained(one)) : undefined))
  assert.deepEqual(
    messages.map(({ weight }) => weight),
    weights,
  )
}

// --- ShareGPT ---------------------------------------------------------------------------------------------------------

interface ShareGptEntry {
  from: string
  value: string
  weight?: number
}

/** Whether LLaMA-Factory would reject the conversation: it begins with an answer, or has two answers in a row. */
export function isRefusedByShareGpt(expected: readonly ExpectedMessage[]): boolean {
  const spoken = expected.slice(leadingSystem(expected))
  return spoken.some(({ message }, at) => {
    const before = spoken[at - 1]?.message.role ?? 'assistant'
    const isTaken = (message.tool_calls?.length ?? 0) > 0 && textOf(message).includes('<tool_call>')
    return message.role === 'assistant' && (before === 'assistant' || isTaken)
  })
}

function leadingSystem(expected: readonly ExpectedMessage[]): number {
  const first = expected.findIndex(({ message }) => !['system', 'developer'].includes(message.role))
  return first === -1 ? expected.length : first
}

function assertShareGptRow(
  entries: readonly ShareGptEntry[],
  system: string,
  expected: readonly ExpectedMessage[],
): void {
  const leading = leadingSystem(expected)
  assert.equal(
    system,
    expected
      .slice(0, leading)
      .map(({ message }) => textOf(message))
      .join('\n\n'),
  )
  const left = [...entries]
  let told: ShareGptEntry | undefined
  for (const one of expected.slice(leading)) {
    const { message } = one
    if (message.role === 'assistant') {
      const said = left.shift() ?? assert.fail('an answer is missing')
      const calls = message.tool_calls ?? []
      assert.equal(said.from, calls.length > 0 ? 'function_call' : 'gpt')
      assert.equal(said.weight, Number(isTrained(one)))
      assertHolds(said.value, [
        textOf(message),
        ...calls.map((call) => `"name": ${JSON.stringify(call.function.name)}`),
      ])
      told = undefined
      continue
    }
    // Adjacent messages to the model share one entry.
    told ??= left.shift() ?? assert.fail('what the model was told is missing')
    if (message.role === 'tool') assert.equal(told.from, 'observation')
    assertHolds(told.value, [textOf(message)])
  }
  assert.deepEqual(left, [], 'entries that were never said')
}

function assertHolds(value: string, texts: readonly string[]): void {
  for (const text of texts)
    assert(value.includes(text), `${JSON.stringify(value)} does not hold ${JSON.stringify(text)}`)
}

// --- NeMo Gym ---------------------------------------------------------------------------------------------------------

interface GymItem {
  type: string
  role?: string
  content?: unknown
  call_id?: string
  output?: string
  generation_token_ids?: number[]
}

function assertNemoGymRow(row: Row, expected: readonly ExpectedMessage[]): void {
  const { input } = row['responses_create_params'] as { input: GymItem[] }
  const { output } = row['response'] as { output: GymItem[] }
  const items = [...input, ...output]
  assert.deepEqual(
    items.flatMap(gist),
    expected.flatMap(({ message }) => gistOfMessage(message)),
  )
  const asked = new Set<string>()
  for (const { type, call_id: id = '' } of items) {
    if (type === 'function_call') asked.add(id)
    if (type === 'function_call_output') assert(asked.has(id), `${id} is a result of no call`)
  }
  const sampled = expected.flatMap(({ calls }) => calls).filter((call) => call.isTrained)
  assert.deepEqual(
    items.flatMap(({ generation_token_ids: ids }) => (ids === undefined ? [] : [ids])),
    sampled.map(({ choice }) => Array.from(choice.ids)),
  )
}

/** Empty texts of an assistant are omitted: a message of only tool calls has no text item. */
function gist({ type, role, content, call_id: id, output }: GymItem): unknown[] {
  if (type === 'function_call') return [['call', id]]
  if (type === 'function_call_output') return [['result', id, output]]
  if (type !== 'message') return []
  const text = textOf({ role: role ?? '', content })
  return role === 'assistant' && text === '' ? [] : [[role, text]]
}

function gistOfMessage(message: WireMessage): unknown[] {
  const text = textOf(message)
  if (message.role === 'tool') return [['result', message.tool_call_id, text]]
  const calls = (message.tool_calls ?? []).map(({ id }) => ['call', id])
  return [...(message.role === 'assistant' && text === '' ? [] : [[message.role, text]]), ...calls]
}
