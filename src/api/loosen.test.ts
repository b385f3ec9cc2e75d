import fc from 'fast-check'
import { expect, test } from 'vitest'
import * as z from 'zod'
import { loosen } from './loosen.ts'
import { SubmitRequest } from './routes/submit-request.ts'

const task = { task_id: 't', instruction: 'Go.', agent: { harness: 'pi' } }

function taken(body: unknown): { data: SubmitRequest; warnings: string[] } {
  const { value, warnings } = loosen(SubmitRequest, body)
  return { data: SubmitRequest.parse(value), warnings }
}

test('loosen() removes unknown fields at any depth, with a warning for each', () => {
  const body = {
    ...task,
    surprise: 1,
    agent: { harness: 'pi', mood: 'good' },
    runtime: { prepare: [{ type: 'exec', command: 'true', shell: 'zsh' }] },
  }
  const { data, warnings } = taken(body)
  expect(data).toEqual(SubmitRequest.parse({ ...task, runtime: { prepare: [{ type: 'exec', command: 'true' }] } }))
  expect(warnings).toEqual([
    expect.stringContaining('body.runtime.prepare.0.shell'),
    expect.stringContaining('body.agent.mood'),
    expect.stringContaining('body.surprise'),
  ])
  expect(body.agent).toHaveProperty('mood')
})

test('loosen() converts numbers and booleans written as text', () => {
  const body = { ...task, num_samples: '4', timeout_seconds: '2.5e2', runtime: { allow_internet: 'true', gpus: '0' } }
  const { data, warnings } = taken(body)
  expect(data).toMatchObject({ num_samples: 4, timeout_seconds: 250, runtime: { allow_internet: true, gpus: 0 } })
  expect(warnings).toHaveLength(4)
  expect(warnings).toContain('body.num_samples: "4" was read as 4')
})

test('loosen() treats null as absent without a warning: model_dump() writes it everywhere', () => {
  const upload = { type: 'upload_file', source: '/a', target: '/b', command: null, cwd: null, env: null }
  const exec = { type: 'exec', command: 'true', source: null, target: null, cwd: null, env: null }
  const { data, warnings } = taken({
    ...task,
    metadata: null,
    builder: null,
    num_samples: null,
    runtime: { prepare: [upload, exec], env: null, kwargs: null },
  })
  expect(data).toMatchObject({ metadata: {}, num_samples: 1, builder: { strategy: 'per_request' } })
  expect(data.runtime).toMatchObject({ prepare: [{ type: 'upload_file' }, { type: 'exec' }], env: {}, kwargs: {} })
  expect(warnings).toEqual([])
})

test.each([
  [{ ...task, num_samples: 'many' }, 'num_samples'],
  [{ ...task, num_samples: '0' }, 'num_samples'],
  [{ ...task, num_samples: '1.5' }, 'num_samples'],
  [{ ...task, instruction: null }, 'instruction'],
  [{ ...task, instruction: 5 }, 'instruction'],
  [{ task_id: 't', instruction: '' }, 'agent'],
  ['text', ''],
  [null, ''],
])('loosen() leaves an invalid value for the schema to reject: %j', (body, place) => {
  const parsed = SubmitRequest.safeParse(loosen(SubmitRequest, body).value)
  expect(parsed.error?.issues[0]?.path.join('.')).toBe(place)
})

test('loosen() does not change a valid value, and terminates for any value', () => {
  const schema = z.strictObject({
    a: z.number().optional(),
    b: z.array(z.strictObject({ c: z.boolean() })).default([]),
  })
  const anything = fc.record(
    { a: fc.oneof(fc.double(), fc.anything()), b: fc.array(fc.record({ c: fc.anything(), d: fc.anything() })) },
    { requiredKeys: [] },
  )
  fc.assert(
    fc.property(anything, (input) => {
      const { value, warnings } = loosen(schema, input)
      if (!schema.safeParse(input).success) return
      expect(value).toEqual(input)
      expect(warnings).toEqual([])
    }),
  )
})
