import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { anyCodePoint } from '../../../test/support/any-code-point.ts'
import { joinParts, OutputParser, type OutputPart, parseOutput, type ParsedOutput } from './output-parser.ts'

const all = { reasoning: true, tools: true }

function parse(text: string, options = all): ParsedOutput {
  return parseOutput(text, options)
}

function call(name: string, args: string): string {
  return `<tool_call>\n{"name": "${name}", "arguments": ${args}}\n</tool_call>`
}

describe('parseOutput()', () => {
  test('passes text without tags unchanged, white space included', () => {
    for (const text of [
      '',
      'A',
      ' A \n',
      '\n\n',
      'a < b <tool',
      'x\n<tool_cal',
      '<thin',
      ' \t<think',
      '</think> </tool_call>',
    ]) {
      expect(parse(text)).toEqual({ reasoning: '', content: text, toolCalls: [] })
    }
  })

  test('parses the canonical turn: reasoning, content and two calls', () => {
    const text = `<think>\nR\n</think>\n\nA\n${call('bash', '{"command": "ls"}')}\n${call('read', '{}')}`
    expect(parse(text)).toEqual({
      reasoning: 'R',
      content: 'A',
      toolCalls: [
        { name: 'bash', arguments: '{"command": "ls"}' },
        { name: 'read', arguments: '{}' },
      ],
    })
  })

  test('keeps white space of the content and drops only the newline of the template', () => {
    expect(parse(`A \n\n${call('f', '{}')}`).content).toBe('A \n')
    expect(parse(`<think>\n\n x\n\n</think>\n\n\nB `)).toEqual({ reasoning: '\n x\n', content: '\nB ', toolCalls: [] })
  })

  test('white space alone around calls is not content', () => {
    expect(parse(` \n${call('f', '{}')}\n\n ${call('g', '{}')} \n`)).toEqual({
      reasoning: '',
      content: '',
      toolCalls: [
        { name: 'f', arguments: '{}' },
        { name: 'g', arguments: '{}' },
      ],
    })
    expect(parse(`<think>\n\n</think>\n\n${call('f', '{}')}`)).toMatchObject({ reasoning: '', content: '' })
  })

  test('keeps text that follows a call', () => {
    expect(parse(`A\n${call('f', '{}')}\nB`).content).toBe('A\nB')
  })

  test('returns arguments as the exact substring, not as reprinted JSON', () => {
    const args = '{ "a":3.0,\n"b" : 12345678901234567890, "c":"\\u00e9" }'
    expect(parse(call('f', args)).toolCalls).toEqual([{ name: 'f', arguments: args }])
  })

  test('returns invalid arguments unchanged', () => {
    for (const args of ['{"command": "echo hi"', '{"a": ', '"', 'not json', '}}}', '{"a": 1}, "id": 5', ' {}']) {
      expect(parse(call('f', args)).toolCalls).toEqual([{ name: 'f', arguments: args }])
    }
  })

  test('accepts other spacing than the template has', () => {
    expect(parse('<tool_call>{"name":"f","arguments":{"a":1}}</tool_call>').toolCalls).toEqual([
      { name: 'f', arguments: '{"a":1}' },
    ])
    expect(
      parse('<tool_call>\n\n { "id": [1, "}"], "name" : "f" , "arguments" :{} }\n\n</tool_call>').toolCalls,
    ).toEqual([{ name: 'f', arguments: '{} ' }])
  })

  test('parses a name after the arguments', () => {
    expect(parse('<tool_call>\n{"arguments": {"a": [1, "x}"]}, "name": "f"}\n</tool_call>').toolCalls).toEqual([
      { name: 'f', arguments: '{"a": [1, "x}"]}' },
    ])
  })

  test('a call without arguments has the empty string', () => {
    expect(parse('<tool_call>\n{"name": "f"}\n</tool_call>').toolCalls).toEqual([{ name: 'f', arguments: '' }])
  })

  test('a block without a readable name is content, with the text around it', () => {
    for (const body of [
      '',
      'hello',
      '\n{"name": 5, "arguments": {}}\n',
      '\n{"name": "", "arguments": {}}\n',
      '[]',
      '{"a": 1}',
    ]) {
      const text = `A\n<tool_call>${body}</tool_call>\nB`
      expect(parse(text)).toEqual({ reasoning: '', content: text, toolCalls: [] })
    }
  })

  test('returns the parts of a truncated block', () => {
    expect(parse('A\n<tool_call>\n{"name": "f", "arguments": {"a": "x').toolCalls).toEqual([
      { name: 'f', arguments: '{"a": "x' },
    ])
    expect(parse('<tool_call>\n{"name": "f", "arguments": {"a": 1}}').toolCalls).toEqual([
      { name: 'f', arguments: '{"a": 1}' },
    ])
    expect(parse('<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool').toolCalls).toEqual([
      { name: 'f', arguments: '{"a": 1}' },
    ])
    expect(parse('<tool_call>\n{"name": "f", "arguments":').toolCalls).toEqual([{ name: 'f', arguments: '' }])
    expect(parse('A\n<tool_call>\n{"na')).toEqual({ reasoning: '', content: 'A\n<tool_call>\n{"na', toolCalls: [] })
    expect(parse('<think>\nR and').reasoning).toBe('R and')
  })

  test('does not parse tags if their parser is disabled', () => {
    const text = `<think>\nR\n</think>\n\nA\n${call('f', '{}')}`
    expect(parse(text, { reasoning: false, tools: false }).content).toBe(text)
    expect(parse(text, { reasoning: true, tools: false }).content).toBe(`A\n${call('f', '{}')}`)
  })

  test('a call inside reasoning is reasoning', () => {
    expect(parse(`<think>\n${call('f', '{}')}\n</think>\n\nA`)).toEqual({
      reasoning: call('f', '{}'),
      content: 'A',
      toolCalls: [],
    })
  })
})

describe('OutputParser', () => {
  test('returns the name before the arguments, and arguments as they arrive', () => {
    const parser = new OutputParser(all)
    const seen: OutputPart[][] = []
    for (const piece of [
      '<tool_',
      'call>\n{"name": "ba',
      'sh", "arg',
      'uments": ',
      '{"x',
      '": 1',
      '}}',
      '\n</tool_call>',
    ]) {
      seen.push(parser.push(piece))
    }
    expect(seen).toEqual([
      [],
      [],
      [],
      [{ type: 'tool-call', index: 0, name: 'bash' }],
      [{ type: 'arguments', index: 0, text: '{"x' }],
      [{ type: 'arguments', index: 0, text: '": 1' }],
      [{ type: 'arguments', index: 0, text: '}' }],
      [],
    ])
  })

  test('returns plain text immediately if no tag can begin in it', () => {
    const parser = new OutputParser(all)
    expect(parser.push('Hello')).toEqual([{ type: 'content', text: 'Hello' }])
    expect(parser.push(' world')).toEqual([{ type: 'content', text: ' world' }])
  })

  const fragment = fc.oneof(
    fc.constantFrom(
      '<think>',
      '</think>',
      '<tool_call>',
      '</tool_call>',
      '\n',
      '\n\n',
      ' ',
      '{',
      '}',
      '"',
      ',',
      ':',
      '"name"',
      '"arguments"',
      '{"name": "f", "arguments": ',
      '{"arguments": {}, "name": "g"}',
      '}\n</tool_call>',
      '\n<tool_call>\n',
      '<',
      '\\',
    ),
    fc.string({ maxLength: 8 }),
    fc.constant('x'.repeat(5000)),
  )
  const sampled = fc.array(fragment, { maxLength: 24 }).map((pieces) => pieces.join(''))

  test('returns the same result however the text is divided', () => {
    fc.assert(
      fc.property(sampled, fc.array(fc.nat(), { maxLength: 30 }), fc.boolean(), (text, cuts, everywhere) => {
        const points =
          everywhere && text.length < 2000 ? [...text].map((_, i) => i) : cuts.map((cut) => cut % (text.length + 1))
        const bounds = [0, ...points.sort((a, b) => a - b), text.length]
        const parser = new OutputParser(all)
        const parts = bounds.slice(1).flatMap((end, i) => parser.push(text.slice(bounds[i], end)))
        expect(joinParts([...parts, ...parser.finish()])).toEqual(parse(text))
      }),
      { numRuns: 3000 },
    )
  })

  test('text without tags passes unchanged', () => {
    fc.assert(
      fc.property(fc.string({ unit: anyCodePoint }), (text) => {
        fc.pre(!text.includes('<think>') && !text.includes('<tool_call>'))
        expect(parse(text).content).toBe(text)
      }),
    )
  })

  test('rendering a parsed canonical turn returns the sampled text', () => {
    const plain = fc.string({ maxLength: 30 }).filter((text) => !/<\/?(think|tool_call)/.test(text))
    const turn = fc.record({
      reasoning: fc.option(
        plain.filter((text) => text !== ''),
        { nil: undefined },
      ),
      content: plain.filter((text) => text === '' || text.trim() !== ''),
      calls: fc.array(fc.tuple(fc.stringMatching(/^[a-z_]{1,10}$/), fc.oneof(fc.json(), plain)), { maxLength: 3 }),
    })
    fc.assert(
      fc.property(turn, ({ reasoning, content, calls }) => {
        const think = reasoning === undefined ? '' : `<think>\n${reasoning}\n</think>\n\n`
        const blocks = calls.map(([name, args]) => call(name, args)).join('\n')
        const text = think + content + (content !== '' && blocks !== '' ? '\n' : '') + blocks
        expect(parse(text)).toEqual({
          reasoning: reasoning ?? '',
          content,
          toolCalls: calls.map(([name, args]) => ({ name, arguments: args })),
        })
      }),
      { numRuns: 1000 },
    )
  })
})
