import type { IncomingHttpHeaders } from 'node:http'
import { RolloutError } from '../../model/failure.ts'
import type { Dialect, RequestContext } from '../dialects/dialect.ts'

/** A request as identified by its method, path and headers. */
export interface Detected {
  dialect: Dialect
  /** Without the fields that depend on the session. */
  context: Omit<RequestContext, 'recall' | 'sealer' | 'parsedParts'>
  /** From the path; absent when the harness dropped the prefix of its base URL. */
  sessionId?: string
  key?: string
}

/** Identifies requests. Throws RolloutError `request.unknown-route` or `request.wrong-method`. */
export function createDetector(
  dialects: readonly Dialect[],
): (request: { method: string; url: string; headers: IncomingHttpHeaders }) => Detected {
  const table = dialects
    .flatMap((dialect) => dialect.routes.map((route) => ({ dialect, route, pattern: patternOf(route.path) })))
    // Routes that require a header first, because they are more specific.
    .toSorted((a, b) => Number(b.route.header !== undefined) - Number(a.route.header !== undefined))
  return ({ method, url, headers }) => {
    const [path = '', search = ''] = url.split('?', 2)
    const prefixed = /^\/s\/([^/]+)(\/.*)?$/.exec(path)
    const rest = prefixed ? (prefixed[2] ?? '/') : path
    const matches = table.filter(
      ({ pattern, route }) => pattern.test(rest) && (route.header === undefined || headers[route.header] !== undefined),
    )
    const match = matches.find(({ route }) => route.method === method)
    if (match === undefined) {
      const allowed = matches.map(({ route }) => route.method).join(', ')
      if (allowed) throw new RolloutError('request.wrong-method', `${rest} accepts ${allowed}, not ${method}.`)
      throw new RolloutError('request.unknown-route', `Unknown route: ${method} ${rest.slice(0, 200)}.`)
    }
    const query = new URLSearchParams(search)
    const wildcards = (match.pattern.exec(rest) ?? []).slice(1).map(decode)
    const context = { route: match.route, wildcards, query, headers }
    return { dialect: match.dialect, context, sessionId: prefixed?.[1], key: keyOf(headers, query) }
  }
}

function patternOf(path: string): RegExp {
  const escaped = path.split('*').map((text) => text.replaceAll(/[.+?^${}()|[\]\\]/g, '\\$&'))
  return new RegExp(`^${escaped.join('([^/]+)')}$`)
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text)
  } catch {
    return text
  }
}

function keyOf(headers: IncomingHttpHeaders, query: URLSearchParams): string | undefined {
  const bearer = /^Bearer +(\S+) *$/i.exec(headers.authorization ?? '')?.[1]
  return bearer ?? single(headers['x-api-key']) ?? single(headers['x-goog-api-key']) ?? query.get('key') ?? undefined
}

/** Returns the dialect that renders the error for a request that matches no route. */
export function guessDialect(
  dialects: readonly [Dialect, ...Dialect[]],
  request: { url: string; headers: IncomingHttpHeaders },
): Dialect {
  const path = (request.url.split('?', 1)[0] ?? '').replace(/^\/s\/[^/]+/, '')
  return dialects.find((dialect) => dialect.recognises(path, request.headers)) ?? dialects[0]
}

function single(value: string | string[] | undefined): string | undefined {
  return typeof value === 'string' ? value : undefined
}
