import { expect, test } from 'vitest'
import * as z from 'zod'
import type { Route } from './route.ts'
import { routes } from './routes/index.ts'

type Json = z.core.JSONSchema.BaseSchema
type Place = readonly (string | number)[]

const WRONG = 3000
/** Of `arrayOf` and `recordOf`, and some for the fields that are missing beside the place. */
const MOST_ISSUES = 1100

const bodies = (Object.entries(routes) as [string, Route][]).flatMap(([name, { body }]) =>
  body?.kind === 'json' ? [{ name, schema: body.schema }] : [],
)
const places = bodies.flatMap(({ name, schema }) =>
  placesIn(z.toJSONSchema(schema, { io: 'input', unrepresentable: 'any' }) as Json).map(({ place, kind }) => ({
    name,
    schema,
    place,
    kind,
  })),
)

test('the bodies of all routes are covered, including results', () => {
  const names = places.map(({ name, place }) => `${name} ${place.join('.')}`)
  expect(names).toContain('postSessionResult trajectory.traces')
  expect(names).toContain('postSessionResult trajectory.traces.0.loss_mask')
  expect(names).toContain('submitBatch tasks')
  expect(names).toContain('submitTask runtime.env')
})

test.each(places)('$name $place ($kind): thousands of wrong values produce few issues', (given) => {
  const { schema, place, kind } = given
  // Neither a number, a text, a list nor an object is expected to be this one.
  const wrong = Array.from({ length: WRONG }, () => true)
  const value = kind === 'list' ? wrong : Object.fromEntries(wrong.map((element, i) => [`key${i}`, element]))
  const parsed = schema.safeParse(bodyWith(place, value))
  expect(parsed.success).toBe(false)
  expect(parsed.error?.issues.length).toBeLessThanOrEqual(MOST_ISSUES)
})

/** Lists and records whose elements have a type. */
function placesIn(schema: Json, defs: Record<string, Json> = schema.$defs ?? {}, at: Place = []): Found[] {
  if (schema.$ref !== undefined) return placesIn(defs[schema.$ref.slice('#/$defs/'.length)] as Json, defs, at)
  const inner = [...(schema.anyOf ?? []), ...(schema.oneOf ?? []), ...(schema.allOf ?? [])] as Json[]
  const found = inner.flatMap((one) => placesIn(one, defs, at))
  for (const [name, of] of Object.entries(schema.properties ?? {})) {
    found.push(...placesIn(of as Json, defs, [...at, name]))
  }
  const { items, additionalProperties: values } = schema
  if (isTyped(items)) found.push({ place: at, kind: 'list' }, ...placesIn(items, defs, [...at, 0]))
  if (isTyped(values)) found.push({ place: at, kind: 'record' })
  return found
}

interface Found {
  place: Place
  kind: 'list' | 'record'
}

function isTyped(schema: unknown): schema is Json {
  return typeof schema === 'object' && schema !== null && Object.keys(schema).length > 0
}

function bodyWith(place: Place, value: unknown): unknown {
  const [first, ...rest] = place
  if (first === undefined) return value
  return typeof first === 'number' ? [bodyWith(rest, value)] : { [first]: bodyWith(rest, value) }
}
