import { describe, expect, test } from 'vitest'
import { openaiFields } from '../upstreams/wire/chat-fields.ts'
import { renderChatBody } from '../upstreams/wire/chat-request.ts'
import { bareContext, type Route } from '../dialects/dialect.ts'
import { openaiChat } from '../dialects/openai-chat.ts'
import { applyQuirks, quirksWith } from './index.ts'
import { QuirkRule } from './rule.ts'
import { compilePattern } from './rule-pattern.ts'
import { cpuTimeMs } from '../../../test/support/cpu-time.ts'

function parse(body: unknown): ReturnType<typeof openaiChat.parseRequest> {
  const context = bareContext(openaiChat.routes[0] as Route)
  return openaiChat.parseRequest({ text: JSON.stringify(body), value: body }, context)
}

function rule(fields: Partial<Record<keyof QuirkRule, unknown>>): QuirkRule {
  return QuirkRule.parse({ name: 'clock', find: 'Time: [0-9]{2}:[0-9]{2}', ...fields })
}

const body = {
  model: 'm',
  messages: [
    { role: 'developer', content: 'Time: 10:00. Help. Time: 11:00', name: 'ops' },
    {
      role: 'user',
      content: [
        { type: 'text', text: 'a' },
        { type: 'text', text: 'Time: 12:00' },
      ],
    },
    { role: 'assistant', content: 'Time: 13:00' },
    { role: 'tool', tool_call_id: 'c', content: 'Time: 14:00' },
  ],
  seed: 7,
}

describe('a rule', () => {
  test('changes what the engine reads, in every match, and nothing else of the body', () => {
    const { request, applied } = applyQuirks(parse(body), quirksWith([rule({ replace: 'Time: $&' })]))
    expect(applied).toEqual(['clock'])
    const sent = JSON.parse(renderChatBody(request, {}, openaiFields).text) as typeof body
    expect(sent).toEqual({
      ...body,
      messages: [
        { role: 'system', content: 'Time: $&. Help. Time: $&', name: 'ops' },
        { role: 'user', content: [body.messages[1]!.content[0], { type: 'text', text: 'Time: $&' }] },
        body.messages[2],
        { role: 'tool', tool_call_id: 'c', content: 'Time: $&' },
      ],
    })
    expect(request.wire.text).toBe(JSON.stringify(body))
  })

  test.each([
    ['system', [0]],
    ['user', [1]],
    ['tool', [3]],
    ['any', [0, 1, 3]],
  ] as const)('for %s changes texts of that role only, and never assistant messages', (role, changed) => {
    const asked = parse(body)
    const { request } = applyQuirks(asked, quirksWith([rule({ where: { role } })]))
    expect(request.messages.flatMap((message, i) => (message === asked.messages[i] ? [] : [i]))).toEqual(changed)
  })

  test('that does not apply returns the same request object', () => {
    const asked = parse(body)
    const rules = [rule({ where: { dialect: 'anthropic-messages' } }), rule({ find: 'Clock: [0-9]{1,4}\n' })]
    expect(applyQuirks(asked, quirksWith(rules))).toEqual({ request: asked, applied: [] })
    expect(applyQuirks(asked, quirksWith(rules)).request).toBe(asked)
  })

  test('with a misspelt key is rejected', () => {
    expect(() => QuirkRule.parse({ name: 'x', find: 'abc', whre: {} })).toThrow(/whre/)
  })
})

describe('a message that a quirk removes', () => {
  test('is removed from the body, and the other messages stay', () => {
    const billed = {
      ...body,
      messages: [{ role: 'system', content: 'x-anthropic-billing-header: a' }, body.messages[1]],
    }
    const { request } = applyQuirks(parse(billed))
    expect(JSON.parse(renderChatBody(request, {}, openaiFields).text)).toMatchObject({
      messages: [{ role: 'user' }],
      seed: 7,
    })
  })
})

test('a text part that a quirk removes is removed from the body', () => {
  const content = ['x-anthropic-billing-header: a', 'You help.'].map((text) => ({ type: 'text', text }))
  const { request } = applyQuirks(parse({ model: 'm', messages: [{ role: 'system', content }], seed: 1 }))
  expect(JSON.parse(renderChatBody(request, {}, openaiFields).text)).toEqual({
    model: 'm',
    messages: [{ role: 'system', content: 'You help.' }],
    seed: 1,
  })
})

describe('compilePattern()', () => {
  test.each([
    ['abc[0-9]*', 'set an upper bound'],
    ['abc[0-9]{1,}', 'set an upper bound'],
    ['(a|b)', 'groups'],
    ['abc(?=d)', 'groups'],
    [String.raw`abc\1`, 'only characters'],
    ['[0-9]{4}-', 'must begin with'],
    ['ab', 'must begin with'],
    ['abc.{0,20}x', 'also matches'],
    ['abc[0-9]{1,9}x?[0-9a]', 'also matches'],
    ['abc[0-9]{501}', 'may match 504'],
    ['abc[', 'only characters'],
    ['abc[z-a]', 'not a valid regular expression'],
    ['^', 'matches nothing'],
  ])('rejects %s', (source, problem) => {
    expect(() => compilePattern(source)).toThrow(problem)
  })

  test.each([
    ['Now: [0-9]{1,3}', 'Now: 5, Now: x, NoNow: 7', 'N, Now: x, NoN'],
    ['^abc[0-9]{1,3}', 'abc12 abc12', 'N abc12'],
    [String.raw`id=[0-9a-f]{8}\n`, 'id=deadbeef\nid=deadbee\n', 'Nid=deadbee\n'],
    [String.raw`(\$)`.slice(1, -1) + '12[0-9]{1,2}$', '$121 $122', '$121 N'],
    ['🐙🐙🐙[^🐙]{1,5}', '🐙🐙🐙🐙ab', '🐙N'],
  ])('%s in %j', (source, text, expected) => {
    const replace = compilePattern(source)
    expect(replace(text, 'N')).toBe(expected)
    expect(replace(text, 'N')).toBe(expected)
  })

  test('is fast on a text that is made to be slow', () => {
    const replace = compilePattern('aaa[a-z]{0,400}-')
    const text = 'a'.repeat(2_000_000)
    const startedAt = cpuTimeMs()
    expect(replace(text, '')).toBe(text)
    expect(cpuTimeMs() - startedAt).toBeLessThan(1000)
  })
})
