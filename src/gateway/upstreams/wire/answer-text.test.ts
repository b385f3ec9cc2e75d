import { describe, expect, test } from 'vitest'
import { detectToolFormat, parseAnswerText } from './answer-text.ts'

const tools = [
  {
    name: 'bash',
    parameters: {
      type: 'object',
      properties: { command: { type: 'string' }, seconds: { type: 'integer' }, all: { type: 'boolean' } },
    },
  },
]

describe('parseAnswerText()', () => {
  test('splits reasoning, content and Hermes calls, with the arguments as sampled', () => {
    const text =
      '<think>\nI look.\n</think>\n\nFirst this.\n<tool_call>\n{"name": "bash", "arguments": {"n":  1.0, "id": 12345678901234567890}}\n</tool_call>\n<tool_call>{"arguments": {}, "name": "ls"}</tool_call>'
    expect(parseAnswerText(text, 'hermes', tools)).toEqual({
      reasoning: 'I look.',
      content: 'First this.',
      toolCalls: [
        { name: 'bash', arguments: '{"n":  1.0, "id": 12345678901234567890}' },
        { name: 'ls', arguments: '{}' },
      ],
    })
  })

  test('converts the parameters of a Qwen3-Coder call by the schema of the tool', () => {
    const text =
      '<tool_call>\n<function=bash>\n<parameter=command>\nls "a b"\n  c\n</parameter>\n<parameter=seconds>\n10\n</parameter>\n<parameter=all>\nTrue\n</parameter>\n<parameter=other>\n7\n</parameter>\n</function>\n</tool_call>'
    const { content, toolCalls } = parseAnswerText(text, 'qwen3-coder', tools)
    expect(content).toBe('')
    expect(toolCalls.map(({ name, arguments: args }) => [name, JSON.parse(args)])).toEqual([
      ['bash', { command: 'ls "a b"\n  c', seconds: 10, all: true, other: '7' }],
    ])
  })

  test.each([
    ['a call that is cut', 'x\n<tool_call>\n{"name": "bash", "argum'],
    ['a call without a name', '<tool_call>{"arguments": {}}</tool_call>'],
    ['a call in another format', '<tool_call><function=bash></function></tool_call>'],
  ])('%s is content', (_, text) => {
    expect(parseAnswerText(text, 'hermes', tools)).toEqual({ content: text, toolCalls: [] })
  })

  test('without tools, a call is content', () => {
    const text = '<tool_call>{"name": "bash", "arguments": {}}</tool_call>'
    expect(parseAnswerText(text, 'hermes', undefined)).toEqual({ content: text, toolCalls: [] })
  })

  test('reasoning may begin in the prompt, and may be cut', () => {
    expect(parseAnswerText('so\n</think>\n\nyes', undefined, undefined)).toMatchObject({
      reasoning: 'so',
      content: 'yes',
    })
    expect(parseAnswerText('<think>\nso on', undefined, undefined)).toMatchObject({ reasoning: 'so on', content: '' })
    expect(parseAnswerText('plain <think>', undefined, undefined)).toEqual({ content: 'plain <think>', toolCalls: [] })
  })
})

test('detectToolFormat() reads the format from a rendered call', () => {
  const hermes =
    'For each call return <tool_call>{"name": <name>}</tool_call> … <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
  expect(detectToolFormat(hermes, 'f')).toBe('hermes')
  expect(detectToolFormat('<tool_call>\n<function=f>\n</function>\n</tool_call>', 'f')).toBe('qwen3-coder')
  expect(detectToolFormat('[TOOL_CALLS][{"name": "f"}]', 'f')).toBeUndefined()
  expect(detectToolFormat('<tool_call>f\n<arg_key>a</arg_key></tool_call>', 'f')).toBeUndefined()
})
