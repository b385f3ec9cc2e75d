import { timingSafeEqual } from 'node:crypto'
import type { Route, Scope } from '../../api/route.ts'
import { whyForeign } from '../../lib/net/foreign-request.ts'
import { isLoopbackHost } from '../../lib/net/loopback-host.ts'
import { isOutbound } from '../../lib/net/outbound-header.ts'
import { hashToken, tokenProblem, tokensOf } from '../../lib/net/request-tokens.ts'
import { RolloutError } from '../../model/failure.ts'
import { speaksFor } from './node-pattern.ts'

export interface AccessToken {
  /** What logs, quotas and error messages call it. */
  name: string
  token: string
  scopes: readonly Scope[]
  /** Names of the nodes that it may speak for, see node-pattern.ts. Absent: all. */
  nodes?: readonly string[]
}

export interface AccessOptions {
  tokens: readonly AccessToken[]
  /** Everybody may do everything: only on a loopback address. */
  isOpen?: boolean
}

export interface Caller {
  name: string
  scopes: readonly Scope[]
  /** Absent: it may speak for any node. */
  nodes?: readonly string[]
}

export interface Access {
  /** Throws `request.unauthorized` or `request.forbidden`. */
  authorize(request: Request, route: Route): Caller
  /**
   * Throws `request.forbidden` where all that lets the caller in is that it is a node, and not this one. It is the same
   * whether there is such a node or not; undefined is a request that should name one and does not.
   */
  authorizeNode(caller: Caller, route: Route, nodeId: string | undefined): void
}

const ALL_SCOPES: readonly Scope[] = ['trainer', 'node', 'read']
/** Of routes that ask for nothing. */
const ANYBODY: Caller = { name: 'anybody', scopes: [] }

/**
 * Who may do what. `host` is where the server listens: without tokens only this machine may reach it. Of the tokens
 * themselves nothing is kept but their hashes.
 */
export function createAccess({ tokens, isOpen = false }: AccessOptions, host: string): Access {
  assertUsable(tokens, isOpen, host)
  if (isOpen) return { authorize: (request) => admitLocal(request, host), authorizeNode }
  const known = tokens.map(({ token, ...caller }) => ({ hash: hashToken(token), caller }))
  return {
    authorize(request, route) {
      assertInbound(request)
      const given = tokensOf(request.headers)
      const caller = given.map((token) => find(known, token)).find((found) => found !== undefined)
      if (route.scopes.length === 0) return caller ?? ANYBODY
      if (caller === undefined) throw unauthorized(given.length > 0)
      if (route.scopes.some((scope) => caller.scopes.includes(scope))) return caller
      throw forbidden(caller, route)
    },
    authorizeNode,
  }
}

function authorizeNode({ name, scopes, nodes }: Caller, route: Route, nodeId: string | undefined): void {
  if (nodes === undefined || (nodeId !== undefined && speaksFor(nodes, nodeId))) return
  if (route.scopes.some((scope) => scope !== 'node' && scopes.includes(scope))) return
  const whom = nodeId === undefined ? 'not without saying for which' : `not for ${JSON.stringify(nodeId.slice(0, 128))}`
  const message =
    `The token "${name}" speaks for the node${nodes.length === 1 ? '' : 's'} ${nodes.join(', ')} only, ${whom}; ` +
    'use a name that fits, or another token.'
  throw new RolloutError('request.forbidden', message)
}

/** Whether it may see a node that it did not ask for by name, in a list of all. */
export function maySeeNode({ scopes, nodes }: Caller, nodeId: string): boolean {
  return scopes.some((scope) => scope !== 'node') || speaksFor(nodes, nodeId)
}

interface Known {
  hash: Buffer
  caller: Caller
}

/** Looks at all of them, also after a match: how long it takes says nothing of which one it was, or how near. */
function find(known: readonly Known[], token: string): Caller | undefined {
  const hash = hashToken(token)
  let found: Caller | undefined
  for (const one of known) if (timingSafeEqual(one.hash, hash)) found = one.caller
  return found
}

function assertInbound({ headers }: Request): void {
  if (!isOutbound(headers)) return
  throw new RolloutError('request.forbidden', 'This server answers neither callbacks nor evaluators of tasks.')
}

function unauthorized(isGiven: boolean): RolloutError {
  const what = isGiven ? 'This server does not know the token it was given' : 'A token is needed, and none was given'
  return new RolloutError('request.unauthorized', `${what}; send one as "Authorization: Bearer …".`)
}

function forbidden(caller: Caller, route: Route): RolloutError {
  const method = route.method.toUpperCase()
  const needed = route.scopes.join(' or ')
  const message = `${method} ${route.path} needs a token with the scope ${needed}; "${caller.name}" has ${caller.scopes.join(', ')}.`
  return new RolloutError('request.forbidden', message)
}

/** A server without tokens trusts every program on this machine, but no web page that is open there. */
function admitLocal(request: Request, host: string): Caller {
  assertInbound(request)
  const why = whyForeign(request.headers, host)
  if (why === undefined) return { name: 'open', scopes: ALL_SCOPES }
  const message = `This server has no tokens and answers this machine only, but ${why}; use 127.0.0.1 or localhost, or start it with tokens.`
  throw new RolloutError('request.forbidden', message)
}

function assertUsable(tokens: readonly AccessToken[], isOpen: boolean, host: string): void {
  const problems = tokens.flatMap(({ name, token, scopes, nodes }, at) => {
    const others = tokens.slice(0, at)
    return [
      tokenProblem(token) !== undefined && `token "${name}" ${tokenProblem(token)}`,
      scopes.length === 0 && `token "${name}" has no scope, so it is good for nothing`,
      nodes !== undefined && !scopes.includes('node') && `token "${name}" names nodes, and has not the scope node`,
      nodes?.length === 0 && `token "${name}" may speak for no node; name some, or leave out the list`,
      others.some((other) => other.name === name) && `two tokens are named "${name}"`,
      others.some((other) => other.token === token) && `token "${name}" is the same as another`,
    ].filter((problem) => problem !== false)
  })
  const isLocal = isLoopbackHost(host)
  if (isOpen && tokens.length > 0) problems.push('a server that is open to everybody asks for no tokens; leave out one')
  if (isOpen && !isLocal) problems.push(`${host} can be reached from other machines, so the server cannot be open`)
  if (!isOpen && tokens.length === 0) {
    const why = isLocal ? 'nobody could use it' : `${host} can be reached from other machines`
    problems.push(`there are no tokens, and ${why}; configure some${isLocal ? ', or open it to this machine' : ''}`)
  }
  if (problems.length > 0) throw new RolloutError('config.invalid', `Access to the server: ${problems.join('; ')}.`)
}
