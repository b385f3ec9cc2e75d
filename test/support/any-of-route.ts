import fc from 'fast-check'
import type * as z from 'zod'
import { FilePath, TaskId } from '../../src/api/fields.ts'
import type { Route } from '../../src/api/route.ts'
import { AgentSpec, PrepareAction } from '../../src/model/task.ts'
import { Trace } from '../../src/model/trajectory.ts'
import { anyOfSchema } from './any-of-schema.ts'

const anySegment = fc
  .string({ minLength: 1, maxLength: 12, unit: 'grapheme' })
  .map((text) => text.toWellFormed().replaceAll(/[\p{Cc}\p{Cs}/\\]/gu, '_'))
  .filter((text) => !/^\.{0,2}$/.test(text))

const anyTaskId = fc.oneof(
  { weight: 3, arbitrary: fc.array(anySegment, { minLength: 1, maxLength: 3 }).map((parts) => parts.join('/')) },
  {
    weight: 1,
    arbitrary: fc.constantFrom('%2F', '%', 'a%25b', '../up', 'a/../b', 'submit', '?x=1#y', ' spaced ', '+', '日本'),
  },
)

const anyTrace = fc.array(fc.nat(50_000), { maxLength: 3 }).chain((ids) =>
  fc.record(
    {
      prompt_ids: fc.array(fc.nat(50_000), { maxLength: 3 }),
      response_ids: fc.constant(ids),
      loss_mask: fc.array(fc.constantFrom(0, 1), { minLength: ids.length, maxLength: ids.length }),
      prompt_messages: fc.constant([{ role: 'user', content: 'hi' }]),
      response_messages: fc.constant([]),
      response_logprobs: fc.constantFrom(
        null,
        ids.map((id) => -(id + 1) / 7),
      ),
      metadata: fc.constant({}),
    },
    { noNullPrototype: true },
  ),
)

const known = new Map<z.ZodType | string, fc.Arbitrary<unknown>>([
  [TaskId, anyTaskId],
  [FilePath, fc.array(anySegment, { minLength: 1, maxLength: 3 }).map((parts) => parts.join('/'))],
  [Trace, anyTrace],
  [
    AgentSpec,
    fc.constantFrom(
      { harness: 'codex', model_name: 'policy', settings: { reasoning: 'high' } },
      { import_path: 'agents.mine:Agent', env: { A: 'b' } },
      { harness: 'shell', custom_shell: { command: 'true', cwd: null } },
      { harness: 'pi', mcp_servers: [{ name: 'm', transport: 'stdio', command: 'mcp', args: ['-v'] }] },
    ),
  ],
  [
    PrepareAction,
    fc.constantFrom(
      { type: 'upload_file', source: '/a', target: '/b' },
      { type: 'exec', command: 'make', max_attempts: 3, retry_backoff_seconds: 0.5 },
      { type: 'checkout', repository: 'https://example.org/r.git', commit: 'a'.repeat(40), target: '/src' },
    ),
  ],
])

export interface AnyCall {
  params: Record<string, unknown>
  query: Record<string, unknown>
  body: unknown
}

/** Draws calls that a route must accept. A body of bytes is drawn as bytes. */
export function anyCallOf({ params, query, body }: Route): fc.Arbitrary<AnyCall> {
  const anyBytes = fc.uint8Array({ maxLength: 300 })
  return fc.record({
    params:
      params === undefined ? fc.constant({}) : (anyOfSchema(params, known) as fc.Arbitrary<Record<string, unknown>>),
    query: query === undefined ? fc.constant({}) : (anyOfSchema(query, known) as fc.Arbitrary<Record<string, unknown>>),
    body:
      body === undefined ? fc.constant(undefined) : body.kind === 'bytes' ? anyBytes : anyOfSchema(body.schema, known),
  })
}

/** Draws one item of the route's answer. */
export function anyAnswerOf({ answer }: Route): fc.Arbitrary<unknown> {
  return answer.kind === 'bytes' ? fc.uint8Array({ maxLength: 300 }) : anyOfSchema(answer.schema, known)
}
