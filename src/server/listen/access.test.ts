import { describe, expect, test } from 'vitest'
import * as z from 'zod'
import type { Route, Scope } from '../../api/route.ts'
import { routes } from '../../api/routes/index.ts'
import { RolloutError } from '../../model/failure.ts'
import { type AccessOptions, createAccess, maySeeNode } from './access.ts'

const trainer = { name: 'lab', token: 'trainer-token-0123456789', scopes: ['trainer'] as Scope[] }
const node = { name: 'nodes', token: 'node-token-0123456789-abc', scopes: ['node'] as Scope[] }
const tokens = [trainer, node]

function ask(headers: Record<string, string>, url = 'http://127.0.0.1:8080/tasks'): Request {
  return new Request(url, { headers: { host: new URL(url).host, ...headers } })
}

function failureOf(call: () => unknown): { code: string; message: string; status: number } {
  try {
    call()
  } catch (error) {
    if (error instanceof RolloutError) return error.failure
    throw error
  }
  throw new Error('nothing was thrown')
}

describe('with tokens', () => {
  const access = createAccess({ tokens }, '0.0.0.0')
  const submit: Route = routes.submitTask

  test('a bearer token identifies the caller', () => {
    expect(access.authorize(ask({ authorization: `Bearer ${trainer.token}` }), submit)).toEqual({
      name: 'lab',
      scopes: ['trainer'],
    })
  })

  test('NVIDIA Polar’s header is accepted too, and the scheme is case-insensitive', () => {
    expect(access.authorize(ask({ 'x-polar-control-token': trainer.token }), submit).name).toBe('lab')
    expect(access.authorize(ask({ authorization: `bearer  ${trainer.token}` }), submit).name).toBe('lab')
    // A proxy may use the other header.
    const both = { authorization: 'Basic dXNlcjpwYXNz', 'x-polar-control-token': trainer.token }
    expect(access.authorize(ask(both), submit).name).toBe('lab')
  })

  test.each([
    ['as password', `x:${trainer.token}`],
    ['as user', `${trainer.token}:`],
    ['alone', trainer.token],
  ])('a token in the URL of the server arrives as Basic credentials and is accepted %s', (_, credentials) => {
    const authorization = `Basic ${Buffer.from(credentials).toString('base64')}`
    for (const route of [submit, routes.getTask, routes.cancelTask]) {
      expect(access.authorize(ask({ authorization }), route).name).toBe('lab')
    }
    const both = { authorization, 'x-polar-control-token': 'of something else' }
    expect(access.authorize(ask(both), submit).name).toBe('lab')
  })

  test.each<Record<string, string>>([
    {},
    { authorization: `Basic ${Buffer.from(`x:${trainer.token}x`).toString('base64')}` },
    { authorization: `Basic ${Buffer.from(`${trainer.token}x:y`).toString('base64')}` },
    { authorization: '' },
    { authorization: 'Bearer' },
    { authorization: `Bearer ${trainer.token}x` },
    { authorization: `Bearer ${trainer.token.slice(0, -1)}` },
    { authorization: `Bearer ${trainer.token.toUpperCase()}` },
    { authorization: `Basic ${trainer.token}` },
    { authorization: trainer.token },
    { 'x-polar-control-token': 'wrong' },
    { cookie: trainer.token },
  ])('%j is unauthorized', (headers) => {
    const failure = failureOf(() => access.authorize(ask(headers), submit))
    expect([failure.code, failure.status]).toEqual(['request.unauthorized', 401])
    expect(failure.message).not.toContain('trainer-token')
  })

  test('a token of another scope is refused with the required scope', () => {
    const failure = failureOf(() => access.authorize(ask({ authorization: `Bearer ${node.token}` }), submit))
    expect([failure.code, failure.status]).toEqual(['request.forbidden', 403])
    expect(failure.message).toMatch(/scope trainer; "nodes" has node/)
  })

  test('a token allows exactly the routes that list its scope', () => {
    for (const route of Object.values(routes) as Route[]) {
      for (const { token, scopes } of tokens) {
        const isAllowed = route.scopes.length === 0 || route.scopes.some((scope) => scopes.includes(scope))
        const call = (): unknown => access.authorize(ask({ authorization: `Bearer ${token}` }), route)
        if (isAllowed) call()
        else expect(failureOf(call).code).toBe('request.forbidden')
      }
    }
  })

  test('a route without scopes accepts a wrong token', () => {
    const open: Route = { ...submit, scopes: [] }
    expect(access.authorize(ask({}), open).scopes).toEqual([])
    expect(access.authorize(ask({ authorization: 'Bearer nonsense' }), open).scopes).toEqual([])
  })

  test('a callback or an evaluator of a task is refused, also with a token', () => {
    const headers = { authorization: `Bearer ${trainer.token}`, 'x-polar-outbound': 'callback' }
    for (const route of Object.values(routes) as Route[])
      expect(failureOf(() => access.authorize(ask(headers), route)).code).toBe('request.forbidden')
  })

  test('with a token the origin of a request does not matter', () => {
    const headers = { authorization: `Bearer ${trainer.token}`, origin: 'https://lab.example', host: 'polar.example' }
    expect(access.authorize(ask(headers), submit).name).toBe('lab')
  })
})

describe('a token with a list of nodes', () => {
  const rack = {
    name: 'rack',
    token: 'rack-token-0123456789-abc',
    scopes: ['node'] as Scope[],
    nodes: ['gpu-*', 'solo'],
  }
  const both = {
    name: 'both',
    token: 'both-token-0123456789-abc',
    scopes: ['node', 'trainer'] as Scope[],
    nodes: ['a'],
  }
  const access = createAccess({ tokens: [trainer, node, rack, both] }, '0.0.0.0')
  const as = ({ token }: { token: string }, route: Route) =>
    access.authorize(ask({ authorization: `Bearer ${token}` }), route)
  const lease: Route = routes.leaseSessions
  const drain: Route = routes.drainNode

  test('may act for these nodes', () => {
    for (const id of ['gpu-1', 'gpu-', 'solo']) access.authorizeNode(as(rack, lease), lease, id)
  })

  test.each(['cpu-1', 'solo-2', 'xgpu-1', '', undefined])('and for no other: %s', (id) => {
    const failure = failureOf(() => access.authorizeNode(as(rack, lease), lease, id))
    expect([failure.code, failure.status]).toEqual(['request.forbidden', 403])
    expect(failure.message).toMatch(/^The token "rack" is only for the nodes gpu-\*, solo,.*use a node id that matches/)
  })

  test('a token without a list may act for all nodes', () => {
    access.authorizeNode(as(node, lease), lease, 'anything')
    expect(maySeeNode(as(node, lease), 'anything')).toBe(true)
  })

  test('the scope trainer is not limited by the list of nodes', () => {
    access.authorizeNode(as(trainer, drain), drain, 'b')
    access.authorizeNode(as(both, drain), drain, 'b')
    expect(failureOf(() => access.authorizeNode(as(both, lease), lease, 'b')).code).toBe('request.forbidden')
    expect([maySeeNode(as(both, lease), 'b'), maySeeNode(as(rack, lease), 'b')]).toEqual([true, false])
  })

  test('every node route declares where its node id is', () => {
    const found = (Object.entries(routes) as [string, Route][]).flatMap(([name, { body, nodeField }]) => {
      if (body?.kind !== 'json') return []
      const fields = nodeFieldsOf(z.toJSONSchema(body.schema, { io: 'input', unrepresentable: 'any' }))
      return fields.length === 0 && nodeField === undefined ? [] : [[name, fields, nodeField]]
    })
    expect(found).toEqual([
      ['registerNode', ['node_id'], 'node_id'],
      ['postSessionResult', ['node_id'], 'node_id'],
      ['completeSession', ['outcome.nodeId'], 'outcome.nodeId'],
    ])
  })
})

/** Searches nested objects; node ids in lists do not act for a node. */
function nodeFieldsOf(schema: z.core.JSONSchema.BaseSchema, at = ''): string[] {
  return Object.entries(schema.properties ?? {}).flatMap(([name, of]) => [
    ...(/^node_?id$/i.test(name) ? [`${at}${name}`] : []),
    ...nodeFieldsOf(of as z.core.JSONSchema.BaseSchema, `${at}${name}.`),
  ])
}

describe('an open server', () => {
  const access = createAccess({ tokens: [], isOpen: true }, '127.0.0.1')
  const route: Route = routes.submitTask

  test.each<Record<string, string>>([
    { host: '127.0.0.1:8080' },
    { host: 'localhost:8080' },
    { host: '[::1]:8080' },
    { host: '127.1.2.3' },
    { host: 'localhost:8080', origin: 'http://localhost:8080', 'sec-fetch-site': 'same-origin' },
    { host: 'localhost:8080', 'sec-fetch-site': 'none' },
  ])('accepts programs of this machine and its own pages: %j', (headers) => {
    expect(access.authorize(ask(headers), route).scopes).toEqual(['trainer', 'node', 'read'])
  })

  test.each<Record<string, string>>([
    // DNS rebinding: an attacker's name that resolves to this machine.
    { host: 'evil.example:8080' },
    { host: '127.0.0.1.evil.example' },
    { host: 'localhost.evil.example:8080' },
    { host: 'evil.example', origin: 'http://evil.example' },
    { host: 'localhost@evil.example' },
    { host: '[::1]x:8080' },
    { host: '' },
    // A web page that uses the correct host name.
    { host: 'localhost:8080', origin: 'https://evil.example' },
    { host: 'localhost:8080', origin: 'http://localhost:3000' },
    { host: 'localhost:8080', origin: 'null' },
    { host: 'localhost:8080', 'sec-fetch-site': 'cross-site' },
    { host: 'localhost:8080', 'sec-fetch-site': 'same-site' },
    // A callback or an evaluator of a task.
    { host: 'localhost:8080', 'x-polar-outbound': 'evaluator' },
  ])('refuses requests that a web page or a task could send: %j', (headers) => {
    const failure = failureOf(() => access.authorize(ask(headers), route))
    expect([failure.code, failure.status]).toEqual(['request.forbidden', 403])
  })
})

describe('invalid settings', () => {
  const rows: [string, AccessOptions, string, RegExp][] = [
    ['a public address without tokens', { tokens: [] }, '0.0.0.0', /no tokens.*other machines/],
    ['a public address that is open', { tokens: [], isOpen: true }, '192.168.1.4', /cannot be open/],
    ['every address of IPv6', { tokens: [], isOpen: true }, '::', /cannot be open/],
    [
      'loopback with neither',
      { tokens: [] },
      '127.0.0.1',
      /no tokens are configured, and no client could use the server/,
    ],
    ['both', { tokens, isOpen: true }, '127.0.0.1', /uses no tokens/],
    ['a short token', { tokens: [{ ...trainer, token: 'fifteen-letters' }] }, '127.0.0.1', /"lab" is shorter than 16/],
    ['a token with a space', { tokens: [{ ...trainer, token: 'sixteen letters!' }] }, '127.0.0.1', /cannot be sent/],
    ['a token without a scope', { tokens: [{ ...trainer, scopes: [] }] }, '127.0.0.1', /no scope/],
    [
      'nodes of a trainer',
      { tokens: [{ ...trainer, nodes: ['a'] }] },
      '127.0.0.1',
      /"lab" lists nodes, but does not have/,
    ],
    ['no nodes at all', { tokens: [{ ...node, nodes: [] }] }, '127.0.0.1', /"nodes" has an empty list of nodes/],
    ['one name twice', { tokens: [trainer, { ...node, name: 'lab' }] }, '127.0.0.1', /two tokens have the name "lab"/],
    [
      'one token twice',
      { tokens: [trainer, { ...node, token: trainer.token }] },
      '127.0.0.1',
      /the same value as another/,
    ],
  ]
  test.each(rows)('%s', (_, options, host, message) => {
    const failure = failureOf(() => createAccess(options, host))
    expect(failure.code).toBe('config.invalid')
    expect(failure.message).toMatch(message)
    expect(failure.message).not.toContain(trainer.token)
  })
})
