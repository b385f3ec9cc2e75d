import { expect, test } from 'vitest'
import * as z from 'zod'
import { toPython } from '../scripts/python-client.ts'
import { json, jsonBody, route, type Route } from '../src/api/route.ts'
import { routes } from '../src/api/routes/index.ts'
import { FailureCode } from '../src/model/failure.ts'

const shared = { origin: 'polar', tag: 'tasks', summary: 'Do it.', scopes: [], isIdempotent: true } as const

const toyRoutes = {
  getToy: route({
    ...shared,
    method: 'get',
    path: '/toys/{toy_id}',
    params: z.strictObject({ toy_id: z.string() }),
    query: z.strictObject({ deep: z.boolean().default(false).describe('All parts.'), tags: z.array(z.string()) }),
    answer: json(z.object({ size: z.number().nullable(), parts: z.array(z.object({ name: z.string() })).optional() })),
  }),
  makeToy: route({
    ...shared,
    method: 'post',
    path: '/toys',
    body: jsonBody(
      z.strictObject({
        kind: z.enum(['car', 'ball']).describe('What to make.'),
        step: z.discriminatedUnion('type', [
          z.strictObject({ type: z.literal('paint'), colour: z.string().nullish() }),
          z.strictObject({ type: z.literal('glue') }),
        ]),
      }),
    ),
    answer: json(z.record(z.string(), z.int())),
    isIdempotent: false,
    takesKey: true,
  }),
  followToys: route({
    ...shared,
    method: 'get',
    path: '/toys',
    query: z.strictObject({ skip: z.int().default(0) }),
    answer: { kind: 'ndjson', schema: z.unknown(), resumeBy: 'skip' },
  }),
}

test('toPython() writes a TypedDict for each object and a method for each route', () => {
  const { types, api } = toPython(toyRoutes, '1.2.3')
  expect(types.slice(types.indexOf('class '))).toMatchInlineSnapshot(`
    "class GetToyAnswer(TypedDict):
        size: float | None
        parts: NotRequired[list[GetToyAnswerPart]]


    class GetToyAnswerPart(TypedDict):
        name: str


    class MakeToyBody(TypedDict):
        # What to make.
        kind: Literal["car", "ball"]
        step: MakeToyBodyStepPaint | MakeToyBodyStepGlue


    class MakeToyBodyStepPaint(TypedDict):
        type: Literal["paint"]
        colour: NotRequired[str | None]


    class MakeToyBodyStepGlue(TypedDict):
        type: Literal["glue"]
    "
  `)
  expect(api.slice(api.indexOf('_GET_TOY ='))).toMatchInlineSnapshot(`
    "_GET_TOY = Route("GET", "/toys/{toy_id}", is_idempotent=True)
    _MAKE_TOY = Route("POST", "/toys", is_idempotent=False, takes_key=True)
    _FOLLOW_TOYS = Route("GET", "/toys", is_idempotent=True, resume_by="skip")


    class Api:
        """One method for each route. Every method raises \`PolarError\` with the failure code of the server."""

        def __init__(self, transport: Transport) -> None:
            self._transport = transport

        def get_toy(
            self,
            toy_id: str,
            *,
            deep: bool | None = None,
            tags: list[str],
        ) -> GetToyAnswer:
            """Do it.

            \`deep\`: All parts.
            """
            answer: GetToyAnswer = self._transport.json(
                _GET_TOY,
                params={"toy_id": toy_id},
                query={"deep": deep, "tags": tags},
            )
            return answer

        def make_toy(
            self,
            body: MakeToyBody,
            *,
            idempotency_key: str | None = None,
        ) -> dict[str, int]:
            """Do it."""
            answer: dict[str, int] = self._transport.json(
                _MAKE_TOY,
                params={},
                query={},
                body=body,
                idempotency_key=idempotency_key,
            )
            return answer

        def follow_toys(
            self,
            *,
            skip: int | None = None,
        ) -> Generator[Any, None, None]:
            """Do it."""
            answer: Generator[Any, None, None] = self._transport.lines(
                _FOLLOW_TOYS,
                params={},
                query={"skip": skip},
            )
            return answer
    "
  `)
})

test('toPython() gives equal objects one class, and refuses two objects of one name', () => {
  const part = (name: string) => z.object({ [name]: z.string() })
  const withAnswer = (answer: z.ZodType): Record<string, Route> => ({
    getToy: route({ ...shared, method: 'get', path: '/toy', answer: json(answer) }),
  })
  const equal = toPython(withAnswer(z.object({ a: part('x'), b: part('x') })), '1.2.3')
  expect(equal.types.match(/^class \w+/gm)).toEqual(['class GetToyAnswer', 'class GetToyAnswerA'])
  const clash = withAnswer(z.object({ a: z.union([part('x'), part('y')]) }))
  expect(() => toPython(clash, '1.2.3')).toThrow('two types are named GetToyAnswerA')
})

test('the Python client has a method for each route, with each parameter, and each failure code', () => {
  const { api, failures } = toPython(routes, '1.2.3')
  const methods = new Map(
    [...api.matchAll(/^ {4}def (\w+)\(\n(.*?)^ {4}\) ->/gms)].map(([, name, text]) => [name, text]),
  )
  for (const [name, { params, query }] of Object.entries(routes) as [string, Route][]) {
    const method = methods.get(name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`))
    for (const field of Object.keys({ ...params?.shape, ...query?.shape }))
      expect(method, name).toMatch(new RegExp(`^ {8}${field}: `, 'm'))
  }
  expect(methods.size).toBe(Object.keys(routes).length)
  for (const code of FailureCode.options) expect(failures).toContain(`"${code}": (`)
})
