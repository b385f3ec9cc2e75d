import type * as z from 'zod'
import { type OpenApi, toOpenApi } from '../src/api/openapi.ts'
import type { Route, RouteTable } from '../src/api/route.ts'
import { Blame, FailureCode, failureClasses } from '../src/model/failure.ts'
import { SessionStatus } from '../src/model/session.ts'
import { TaskResult } from '../src/model/task.ts'
import { PythonTypes, type Schema, wrap } from './python-types.ts'

/** Enumerations with a name in Python; all others are written as literals where they are used. */
const aliases: Readonly<Record<string, z.ZodEnum>> = {
  FailureCode,
  SessionStatus,
  TaskState: TaskResult.shape.status,
}

export interface PythonSources {
  types: string
  api: string
  failures: string
  version: string
}

/** Renders the generated modules of `clients/python`: the types of requests and answers, and one method for each route. */
export function toPython(table: RouteTable, version: string): PythonSources {
  const document = toOpenApi(table, version)
  const types = new PythonTypes(document.components.schemas, aliases)
  const methods = Object.entries(table).map(([name, route]) => toMethod(name, route, document, types))
  const constants = Object.entries(table).map(([name, route]) => `${constantOf(name)} = ${toRoute(route)}`)
  const names = types.names.filter((name) => methods.some((method) => new RegExp(`\\b${name}\\b`).test(method)))
  return {
    types: `${HEADER}
"""Types of requests and answers of the Polar rollout server. Answers may have more fields than listed here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if sys.version_info >= (3, 11):
    from typing import NotRequired
elif TYPE_CHECKING:
    from typing_extensions import NotRequired

${types.render()}
`,
    api: `${HEADER}
"""One method for each route of the Polar rollout server."""

from __future__ import annotations

from typing import Any, Generator, Literal

from ._transport import Event, Route, Transport
from .types import (
${names.map((name) => `    ${name},\n`).join('')})

${constants.join('\n')}


class Api:
    """One method for each route. Every method raises \`PolarError\` with the failure code of the server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

${methods.join('\n')}`,
    failures: `${HEADER}
"""Failure codes: who is to blame, and whether a retry without changes may succeed."""

from __future__ import annotations

from typing import Literal

Blame = ${literal(Blame.options)}

FAILURES: dict[str, tuple[Blame, bool]] = {
${FailureCode.options.map((code) => `    "${code}": ("${failureClasses[code].blame}", ${toPythonValue(failureClasses[code].retryable)}),`).join('\n')}
}
`,
    version: `${HEADER}
VERSION = "${version}"
`,
  }
}

const HEADER = '# Written by `npm run docs` from the route table in src/api. Do not edit.'

function toRoute(route: Route): string {
  const { method, path, answer, isIdempotent, takesKey = false, body } = route
  const fields = [
    `"${method.toUpperCase()}"`,
    `"${path}"`,
    `is_idempotent=${toPythonValue(isIdempotent)}`,
    ...(takesKey ? ['takes_key=True'] : []),
    ...(body?.kind === 'json' && body.adapt !== undefined ? ['is_strict=True'] : []),
    ...(answer.kind === 'ndjson' ? [`resume_by="${answer.resumeBy}"`] : []),
  ]
  return `Route(${fields.join(', ')})`
}

/** How a method passes its arguments on, by kind of answer. */
const CALLS = {
  json: (type: string) => ({ returns: type, call: 'json' }),
  ndjson: (type: string) => ({ returns: `Generator[${type}, None, None]`, call: 'lines' }),
  sse: (type: string) => ({ returns: `Generator[Event[${type}], None, None]`, call: 'events' }),
  bytes: () => ({ returns: 'Generator[bytes, None, None]', call: 'chunks' }),
} as const

interface Parameter {
  name: string
  in: 'path' | 'query' | 'header'
  required: boolean
  description?: string
  schema: Schema
}

interface Media {
  schema?: Schema
}

interface Operation {
  summary: string
  description?: string
  parameters: Parameter[]
  requestBody?: { content: Record<string, Media> }
  responses: { '200': { content: Record<string, Media> } }
}

function toMethod(name: string, route: Route, { paths }: OpenApi, types: PythonTypes): string {
  const operation = paths[route.path]![route.method] as unknown as Operation
  const title = name[0]!.toUpperCase() + name.slice(1)
  const inPath = operation.parameters.filter((each) => each.in === 'path')
  const inQuery = operation.parameters.filter((each) => each.in === 'query')
  const positional = inPath.map((each) => `${each.name}: ${types.of(each.schema, title)}`)
  if (route.body !== undefined) positional.push(toBodyParameter(operation, title, types))
  const named = inQuery.map((each) => {
    const type = types.of(each.schema, `${title}${each.name}`)
    return each.required ? `${each.name}: ${type}` : `${each.name}: ${type} | None = None`
  })
  if (route.takesKey) named.push('idempotency_key: str | None = None')
  assertDistinct(name, [...positional, ...named])
  const answer = Object.values(operation.responses['200'].content)[0]?.schema
  const { returns, call } = CALLS[route.answer.kind](types.of(answer ?? {}, `${title}Answer`))
  const passed = [
    `params=${toDict(inPath)}`,
    `query=${toDict(inQuery)}`,
    ...(route.body === undefined ? [] : ['body=body']),
    ...(route.takesKey ? ['idempotency_key=idempotency_key'] : []),
  ]
  const parameters = ['self', ...positional, ...(named.length > 0 ? ['*', ...named] : [])]
  return `    def ${toSnake(name)}(
        ${parameters.join(',\n        ')},
    ) -> ${returns}:
        ${toDocstring(operation)}
        answer: ${returns} = self._transport.${call}(
            ${[constantOf(name), ...passed].join(',\n            ')},
        )
        return answer
`
}

/** A body without required fields may be left out. */
function toBodyParameter({ requestBody }: Operation, title: string, types: PythonTypes): string {
  const schema = requestBody?.content['application/json']?.schema
  if (schema === undefined) return 'body: bytes'
  const isOptional = schema.properties !== undefined && (schema.required ?? []).length === 0
  const type = types.of(schema, `${title}Body`)
  return isOptional ? `body: ${type} | None = None` : `body: ${type}`
}

function toDict(parameters: readonly Parameter[]): string {
  return `{${parameters.map(({ name }) => `"${name}": ${name}`).join(', ')}}`
}

function assertDistinct(name: string, parameters: readonly string[]): void {
  const names = parameters.map((parameter) => parameter.split(':')[0])
  if (new Set(names).size < names.length) throw new Error(`${name}: two parameters have the same name`)
}

function toDocstring({ summary, description, parameters }: Operation): string {
  const about = parameters
    .filter((each) => each.in !== 'header' && each.description !== undefined)
    .map((each) => `\`${each.name}\`: ${each.description}`)
  const paragraphs = [summary, ...(description === undefined ? [] : [description])]
  const text = [...paragraphs, ...(about.length === 0 ? [] : [about.join('\n')])].join('\n\n')
  const lines = text.split('\n').flatMap((line) => wrap(line.replaceAll('\\', '\\\\').replaceAll('"""', "'''")))
  const [first = '', ...rest] = lines
  if (rest.length === 0) return `"""${first}"""`
  return [`"""${first}`, ...rest, '"""'].join('\n        ').replaceAll(/ +$/gm, '')
}

function toSnake(name: string): string {
  return name.replaceAll(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`)
}

function constantOf(name: string): string {
  return `_${toSnake(name).toUpperCase()}`
}

function literal(values: readonly string[]): string {
  return `Literal[${values.map((value) => `"${value}"`).join(', ')}]`
}

function toPythonValue(value: boolean): string {
  return value ? 'True' : 'False'
}
