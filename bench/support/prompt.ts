/** A request of a coding agent in the middle of a session: a system prompt, tools, and a history of tool calls. */

const PROMPT_BYTES = 50 * 1024
const COUNTER_DIGITS = 12

export interface RequestOptions {
  stream: boolean
  /** Instructions for the replay upstream. Empty: the whole answer at once. */
  replay: string
  /** Requests token ids and log probabilities, so that a gateway relays everything. */
  withIds: boolean
}

/**
 * Request bodies of one conversation. They differ in a number at their end, like calls of a session: most of a prompt
 * repeats the previous one.
 */
export function createRequests(options: RequestOptions): (call: number) => Buffer {
  const bytes = Buffer.from(JSON.stringify(requestBody(options)))
  const counterAt = bytes.lastIndexOf('0'.repeat(COUNTER_DIGITS))
  const head = bytes.subarray(0, counterAt)
  const tail = bytes.subarray(counterAt + COUNTER_DIGITS)
  return (call) => Buffer.concat([head, Buffer.from(String(call).padStart(COUNTER_DIGITS, '0')), tail])
}

/**
 * `stream` and `user` are the first fields, so that the replay upstream finds them at the beginning. Not every proxy relays
 * `user`, so the last message has the same content.
 */
export function requestBody({ stream, replay, withIds }: RequestOptions): Record<string, unknown> {
  return {
    model: 'tiny',
    stream,
    user: `replay ${replay}`,
    ...(stream ? { stream_options: { include_usage: true } } : {}),
    ...(withIds ? { return_token_ids: true, logprobs: true } : {}),
    temperature: 1,
    max_completion_tokens: 4096,
    tools: TOOLS,
    messages: messages(replay),
  }
}

function messages(replay: string): Record<string, unknown>[] {
  const words = createWords()
  const history: Record<string, unknown>[] = [
    { role: 'system', content: words(6000) },
    { role: 'user', content: [{ type: 'text', text: words(800) }] },
  ]
  for (let step = 0; sizeOf(history) < PROMPT_BYTES - sizeOf(TOOLS) - 3500; step++) {
    const id = `call_${String(step).padStart(24, '0')}`
    const path = `src/${words(12).replaceAll(/\W/g, '-')}.ts`
    history.push(
      {
        role: 'assistant',
        content: words(240),
        tool_calls: [{ id, type: 'function', function: { name: 'read_file', arguments: JSON.stringify({ path }) } }],
      },
      { role: 'tool', tool_call_id: id, content: words(2400) },
    )
  }
  history.push({ role: 'user', content: `${words(400)} [replay ${replay}] ${'0'.repeat(COUNTER_DIGITS)}` })
  return history
}

function sizeOf(value: unknown): number {
  return Buffer.byteLength(JSON.stringify(value))
}

/** Text of about this many bytes, the same in every process: lines of source code, as agents read them. */
export function createWords(seed = 1): (bytes: number) => string {
  let state = seed
  const next = (below: number): number => {
    state = (state * 48271) % 2147483647
    return state % below
  }
  return (bytes) => {
    let text = ''
    while (text.length < bytes) text += `${WORDS[next(WORDS.length)]}${SEPARATORS[next(SEPARATORS.length)]}`
    return text.slice(0, bytes)
  }
}

const WORDS = `const return await function the session token of stream is and to request response when not in buffer for
error with that value if length write read index open close this every string number from queue reader parse result
while state signal chunk after before import export type async path file line test expect turn model server`.split(
  /\s+/,
)

const SEPARATORS = [' ', ' ', ' ', ' ', ' ', ' ', '(', ') ', ', ', '.', ': "', '" ', '\n  ', '\n']

const TOOLS = ['read_file', 'write_file', 'edit_file', 'run_command', 'search', 'list_directory'].map((name) => ({
  type: 'function',
  function: {
    name,
    description: `${name.replaceAll('_', ' ')} in the workspace. Paths are relative to its root; output is cut at 30000
characters; a command that runs longer than its limit is ended and what it printed until then is returned.`,
    parameters: {
      type: 'object',
      properties: {
        path: { type: 'string', description: 'Path of the file, relative to the root of the workspace' },
        content: { type: 'string', description: 'Text to write, search for or run' },
        offset: { type: 'integer', minimum: 0, description: 'First line, counted from zero' },
        limit: { type: 'integer', minimum: 1, maximum: 2000, description: 'Number of lines' },
      },
      required: ['path'],
      additionalProperties: false,
    },
  },
}))
