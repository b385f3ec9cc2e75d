import { expect, test } from 'vitest'
import { toOpenApi } from './openapi.ts'
import { routes } from './routes/index.ts'

const document = toOpenApi(routes, '1.2.3')
const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, operation]) => ({ path, method, operation })),
)

function* refsIn(value: unknown): Generator<string> {
  if (typeof value !== 'object' || value === null) return
  for (const [key, inner] of Object.entries(value)) {
    if (key === '$ref' && typeof inner === 'string') yield inner
    else yield* refsIn(inner)
  }
}

test('every route is one operation with its own name', () => {
  const ids = operations.map(({ operation }) => operation['operationId'])
  expect(new Set(ids).size).toBe(ids.length)
  expect(new Set(ids)).toEqual(new Set(Object.keys(routes)))
})

test('every reference resolves, and every schema and response is referenced', () => {
  const { schemas, responses } = document.components
  const names = [
    ...Object.keys(schemas).map((name) => `#/components/schemas/${name}`),
    ...Object.keys(responses).map((name) => `#/components/responses/${name}`),
  ]
  expect(new Set(refsIn(document))).toEqual(new Set(names))
})

test('the document is plain JSON of version 3.1 without schema-level keywords', () => {
  expect(JSON.parse(JSON.stringify(document))).toEqual(document)
  expect(document).toMatchObject({ openapi: '3.1.0', info: { title: expect.any(String), version: '1.2.3' } })
  expect(JSON.stringify(document)).not.toMatch(/"\$defs"|"\$schema"|"id":"[A-Z]/)
})

test('every parameter of a path is declared, required and described by a schema', () => {
  for (const { path, operation } of operations) {
    const declared = (
      operation['parameters'] as { in: string; name: string; required: boolean; schema: object }[]
    ).filter((parameter) => parameter.in === 'path')
    expect(declared.map(({ name }) => `{${name}}`)).toEqual(path.match(/\{\w+\}/g) ?? [])
    expect(declared.every(({ required, schema }) => required && Object.keys(schema).length > 0)).toBe(true)
  }
})

test('every operation declares its security, response and errors', () => {
  for (const { path, method, operation } of operations) {
    const responses = operation['responses'] as Record<string, unknown>
    expect(Object.keys(responses), `${method} ${path}`).toContain('200')
    const isOpen = (operation['security'] as unknown[]).length === 0
    expect(isOpen, path).toBe(path === '/health' || path === '/openapi.json')
    expect('401' in responses).toBe(!isOpen)
  }
})

test('fields with a default are optional in requests and required in responses', () => {
  expect(document.components.schemas['SubmitRequest']).toMatchObject({
    required: ['task_id', 'instruction', 'agent'],
    additionalProperties: false,
  })
  expect(document.components.schemas['TaskRequest']).toMatchObject({
    required: expect.arrayContaining(['num_samples', 'timeout_seconds', 'metadata']),
  })
})

test('responses allow additional properties', () => {
  expect(document.components.schemas['TaskStatus']).not.toHaveProperty('additionalProperties')
})

test('descriptions of fields and parameters are kept', () => {
  const { requires } = document.components.schemas['SubmitRequest']!['properties'] as Record<string, object>
  expect(requires).toMatchObject({ description: 'Labels that a node must have to lease sessions of the task.' })
  const list = document.paths['/tasks']!['get']!['parameters']
  expect(list).toContainEqual(expect.objectContaining({ name: 'search', description: 'Substring of the task id.' }))
})
