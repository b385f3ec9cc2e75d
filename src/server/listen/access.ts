import { timingSafeEqual } from 'node:crypto'
import type { Route, Scope } from '../../api/route.ts'
import { whyForeign } from '../../lib/net/foreign-request.ts'
import { isLoopbackHost } from '../../lib/net/loopback-host.ts'
import { isOutbound } from '../../lib/net/outbound-header.ts'
import { hashToken, tokenProblem, tokensOf } from '../../lib/net/request-tokens.ts'
import { RolloutError } from '../../model/failure.ts'
import { mayActFor } from './node-pattern.ts'

export interface AccessToken {
  /** Shown in logs, quotas and error messages. */
  name: string
  token: string
  scopes: readonly Scope[]
  /** Patterns of the node ids that the token may act for, see node-pattern.ts. Absent: all. */
  nodes?: readonly string[]
}

export interface AccessOptions {
  tokens: readonly AccessToken[]
  /** Every caller has all scopes: only on a loopback address. */
  isOpen?: boolean
}

export interface Caller {
  name: string
  scopes: readonly Scope[]
  /** Absent: all nodes. */
  nodes?: readonly string[]
}

export interface Access {
  /** Throws `request.unauthorized` or `request.forbidden`. */
  authorize(request: Request, route: Route): Caller
  /**
   * Throws `request.forbidden` if the caller has access only by the scope `node`, and not for this node, whether the node
   * exists or not. `nodeId` is undefined if the request should contain one and does not.
   */
  authorizeNode(caller: Caller, route: Route, nodeId: string | undefined): void
}

const ALL_SCOPES: readonly Scope[] = ['trainer', 'node', 'read']
/** Caller of routes that need no scope. */
const ANONYMOUS: Caller = { name: 'anonymous', scopes: [] }

/** `host`: the address that the server listens on; without tokens it must be a loopback address. Keeps only hashes of tokens. */
export function createAccess({ tokens, isOpen = false }: AccessOptions, host: string): Access {
  assertUsable(tokens, isOpen, host)
  if (isOpen) return { authorize: (request) => admitLocal(request, host), authorizeNode }
  const known = tokens.map(({ token, ...caller }) => ({ hash: hashToken(token), caller }))
  return {
    authorize(request, route) {
      assertInbound(request)
      const sent = tokensOf(request.headers)
      const caller = sent.map((token) => findCaller(known, token)).find((found) => found !== undefined)
      if (route.scopes.length === 0) return caller ?? ANONYMOUS
      if (caller === undefined) throw unauthorized(sent.length > 0)
      if (route.scopes.some((scope) => caller.scopes.includes(scope))) return caller
      throw forbidden(caller, route)
    },
    authorizeNode,
  }
}

function authorizeNode({ name, scopes, nodes }: Caller, route: Route, nodeId: string | undefined): void {
  if (nodes === undefined || (nodeId !== undefined && mayActFor(nodes, nodeId))) return
  if (route.scopes.some((scope) => scope !== 'node' && scopes.includes(scope))) return
  const problem =
    nodeId === undefined ? 'and the request names no node' : `not for ${JSON.stringify(nodeId.slice(0, 128))}`
  const message =
    `The token "${name}" is only for the node${nodes.length === 1 ? '' : 's'} ${nodes.join(', ')}, ${problem}; ` +
    'use a node id that matches, or another token.'
  throw new RolloutError('request.forbidden', message)
}

/** Whether the caller may see the node in a list of all nodes. */
export function maySeeNode({ scopes, nodes }: Caller, nodeId: string): boolean {
  return scopes.some((scope) => scope !== 'node') || mayActFor(nodes, nodeId)
}

interface Known {
  hash: Buffer
  caller: Caller
}

/** Compares all tokens, also after a match, so that the time reveals nothing about the match. */
function findCaller(known: readonly Known[], token: string): Caller | undefined {
  const hash = hashToken(token)
  let found: Caller | undefined
  for (const entry of known) if (timingSafeEqual(entry.hash, hash)) found = entry.caller
  return found
}

function assertInbound({ headers }: Request): void {
  if (!isOutbound(headers)) return
  throw new RolloutError('request.forbidden', 'This server accepts no requests from callbacks or task evaluators.')
}

function unauthorized(hasToken: boolean): RolloutError {
  const problem = hasToken ? 'The token is not known to this server' : 'The request has no token'
  return new RolloutError('request.unauthorized', `${problem}; send a valid one as "Authorization: Bearer …".`)
}

function forbidden(caller: Caller, route: Route): RolloutError {
  const method = route.method.toUpperCase()
  const needed = route.scopes.join(' or ')
  const message = `${method} ${route.path} needs a token with the scope ${needed}; "${caller.name}" has ${caller.scopes.join(', ')}.`
  return new RolloutError('request.forbidden', message)
}

/** A server without tokens trusts every program on this machine, but no web page in a browser on it. */
function admitLocal(request: Request, host: string): Caller {
  assertInbound(request)
  const why = whyForeign(request.headers, host)
  if (why === undefined) return { name: 'open', scopes: ALL_SCOPES }
  const message = `This server has no tokens and accepts only requests from this machine, but ${why}; use 127.0.0.1 or localhost, or start it with tokens.`
  throw new RolloutError('request.forbidden', message)
}

function assertUsable(tokens: readonly AccessToken[], isOpen: boolean, host: string): void {
  const problems = tokens.flatMap(({ name, token, scopes, nodes }, at) => {
    const others = tokens.slice(0, at)
    return [
      tokenProblem(token) !== undefined && `token "${name}" ${tokenProblem(token)}`,
      scopes.length === 0 && `token "${name}" has no scope, so it allows nothing`,
      nodes !== undefined &&
        !scopes.includes('node') &&
        `token "${name}" lists nodes, but does not have the scope node`,
      nodes?.length === 0 && `token "${name}" has an empty list of nodes; add some, or remove the list`,
      others.some((other) => other.name === name) && `two tokens have the name "${name}"`,
      others.some((other) => other.token === token) && `token "${name}" has the same value as another`,
    ].filter((problem) => problem !== false)
  })
  const isLocal = isLoopbackHost(host)
  if (isOpen && tokens.length > 0) problems.push('an open server uses no tokens; remove the tokens or isOpen')
  if (isOpen && !isLocal) problems.push(`${host} is reachable from other machines, so the server cannot be open`)
  if (!isOpen && tokens.length === 0) {
    const why = isLocal ? 'no client could use the server' : `${host} is reachable from other machines`
    problems.push(
      `no tokens are configured, and ${why}; configure some${isLocal ? ', or open the server to this machine' : ''}`,
    )
  }
  if (problems.length > 0) throw new RolloutError('config.invalid', `Access to the server: ${problems.join('; ')}.`)
}
