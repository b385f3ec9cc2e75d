import { describe, expect, test } from 'vitest'
import { EngineSetupError } from '../setup-error.ts'
import { MARKER, parseScript, Script } from './script-schema.ts'

function problemsOf(source: unknown): string {
  try {
    parseScript(source as string)
  } catch (error) {
    expect(error).toBeInstanceOf(EngineSetupError)
    return (error as EngineSetupError).message
  }
  return ''
}

describe('parseScript()', () => {
  test('parses YAML and applies defaults', () => {
    const script = parseScript(`
scenarios:
  write-file:
    - reasoning: First I write.
      text: Writing.
      tool_calls: [{name: bash, arguments: {command: "echo hi"}}]
      first_token_ms: 20
      fault: {kind: status, status: 429, retry_after_seconds: 1, times: 2}
    - text: Done.
order:
  - tokens: 100
repeat: cycle
default: {text: What?}
`)
    expect(script.scenarios['write-file']?.[0]).toMatchObject({
      first_token_ms: 20,
      per_token_ms: 0,
      finish: 'stop',
      fault: { kind: 'status', status: 429, times: 2 },
    })
    expect(script.order?.[0]).toMatchObject({ tokens: 100, tool_calls: [] })
    expect(script.logprobs).toBe('synthetic')
  })

  test('accepts an object', () => {
    expect(parseScript({ default: { text: 'hi' } }).default?.text).toBe('hi')
  })

  test('reports the path of every problem', () => {
    expect(problemsOf({ scenarios: { a: [{ txt: 'x' }] } })).toContain('scenarios.a.0: Unrecognized key: "txt"')
    expect(problemsOf({ order: [{ per_token_ms: -1 }] })).toContain('order.0.per_token_ms:')
    expect(problemsOf({ scenarios: { 'a b': [{ text: '' }] } })).toContain('scenarios.a b:')
    expect(problemsOf({ default: { fault: { kind: 'status', status: 200 } } })).toContain('default.fault.status:')
    expect(problemsOf({ default: { fault: { kind: 'nope' } } })).toContain('default.fault.kind:')
    expect(problemsOf({ default: { fault: [{ kind: 'cut' }] } })).toContain('default.fault.0.after_tokens:')
    expect(problemsOf({ default: { tokens: 3, text: 'x' } })).toContain('default.tokens: cannot be combined with text')
    expect(problemsOf({ default: { tool_calls: [{ name: 'a b' }] } })).toContain('default.tool_calls.0.name:')
    expect(problemsOf({ scenarios: { a: [] } })).toContain('scenarios.a:')
  })

  test('accepts another model than the embedded model, unless the embedded model computes the log probabilities', () => {
    expect(parseScript({}).model).toEqual({ images: false })
    const model = { context_tokens: 200_000, images: true }
    expect(parseScript({ model }).model).toEqual(model)
    expect(problemsOf({ model, logprobs: 'model' })).toContain('model: must be that of the embedded model')
  })

  test('reports the position of a YAML error, and rejects an empty file', () => {
    expect(problemsOf('a: [1, 2')).toMatch(/not valid YAML.*line 1/s)
    expect(problemsOf('')).toContain('(top level)')
  })

  test('limits the expansion of aliases', () => {
    const bomb = [
      'a0: &a0 [x]',
      ...Array.from({ length: 12 }, (_, i) => `a${i + 1}: &a${i + 1} [${Array(9).fill(`*a${i}`).join(', ')}]`),
    ]
    expect(() => parseScript(bomb.join('\n'))).toThrow()
  })

  test('describes every field', () => {
    const undescribed: string[] = []
    const visit = (node: unknown, path: string): void => {
      if (typeof node !== 'object' || node === null) return
      for (const [key, value] of Object.entries(node)) {
        if (key === 'properties') {
          for (const [name, field] of Object.entries(value as Record<string, object>)) {
            if (!('description' in field)) undescribed.push(`${path}.${name}`)
          }
        }
        visit(value, `${path}.${key}`)
      }
    }
    visit(Script.toJSONSchema({ io: 'input' }), '')
    expect(undescribed).toEqual([])
  })
})

test('MARKER matches names with inner dots and nonces, but not a final full stop', () => {
  const found = [...'See SCRIPT:write-file. Or SCRIPT:a.b_c#run-1, then SCRIPT:x'.matchAll(MARKER)]
  expect(found.map(({ groups }) => [groups?.['name'], groups?.['nonce']])).toEqual([
    ['write-file', undefined],
    ['a.b_c', 'run-1'],
    ['x', undefined],
  ])
})
