import { openaiFields } from '../gateway/upstreams/wire/chat-fields.ts'
import { renderChatBody } from '../gateway/upstreams/wire/chat-request.ts'
import { bareContext } from '../gateway/dialects/dialect.ts'
import { dialects } from '../gateway/dialects/index.ts'
import { applyQuirks, quirksWith } from '../gateway/quirks/index.ts'
import type { Quirk } from '../gateway/quirks/quirk.ts'
import { QuirkRule } from '../gateway/quirks/rule.ts'
import type { SessionRecord } from '../model/session.ts'
import type { Turn, TurnRequest } from '../model/turn.ts'
import type { RequestReader } from '../trajectory/graph/call-graph.ts'

/** Parses a recorded request; undefined if this version cannot parse it. */
export function readRequest(turn: Turn): TurnRequest | undefined {
  const dialect = dialects.find(({ id }) => id === turn.dialect)
  const route = dialect?.routes.find(({ kind }) => kind === 'generate')
  if (dialect === undefined || route === undefined) return undefined
  const wildcards = route.path
    .split('*')
    .slice(1)
    .map(() => turn.model)
  try {
    const body = { text: turn.request, value: JSON.parse(turn.request) as unknown }
    return dialect.parseRequest(body, { ...bareContext(route), wildcards, headers: turn.headers })
  } catch {
    return undefined
  }
}

/** Reads recorded requests as the harness sent them. */
export const requestReader: RequestReader = createReader(readRequest)

/** Reads recorded requests as the engine received them: applies the quirks that the gateway recorded. */
export function createRequestReader({ origin }: Pick<SessionRecord, 'origin'>): RequestReader {
  const rules = QuirkRule.array().safeParse(origin['quirks'])
  const known = quirksWith(rules.data ?? [])
  return createReader((turn) => {
    const applied = turn.forced['quirks']
    const request = readRequest(turn)
    if (request === undefined || !Array.isArray(applied)) return request
    const isApplied = ({ name }: Quirk): boolean => applied.includes(name)
    return applyQuirks(request, known.filter(isApplied)).request
  })
}

function createReader(read: (turn: Turn) => TurnRequest | undefined): RequestReader {
  return {
    readRequest: read,
    readPrompt(turn) {
      const request = read(turn)
      if (request === undefined) return { messages: [], tools: null }
      // Messages and tools have the same fields on every engine.
      const body = JSON.parse(renderChatBody(request, {}, openaiFields).text) as {
        messages?: unknown[]
        tools?: unknown[] | null
      }
      return { messages: body.messages ?? [], tools: body.tools ?? null }
    },
  }
}
