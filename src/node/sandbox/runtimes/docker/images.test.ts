import { mkdtemp, rm } from 'node:fs/promises'
import { createServer, type Server } from 'node:http'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { ContainerEngine } from './container-engine.ts'
import { Images, registryOf, type PullPolicy } from './images.ts'

let dir: string
let server: Server
let engine: ContainerEngine
let present: Set<string>
let pulls: { name: string; auth: unknown }[]
let lastLine: object

beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-images-'))
  present = new Set()
  pulls = []
  lastLine = { status: 'done' }
  server = createServer((request, response) => {
    const url = new URL(request.url ?? '', 'http://engine')
    const found = /^\/v1\.41\/images\/(.+)\/json$/.exec(url.pathname)?.[1]
    if (found !== undefined) {
      if (present.has(found)) return void response.end(JSON.stringify({ Id: `sha256:${found}`, Config: {} }))
      return void response.writeHead(404).end(JSON.stringify({ message: 'no such image' }))
    }
    const name = url.searchParams.get('fromImage') ?? ''
    const auth = request.headers['x-registry-auth']
    pulls.push({
      name,
      auth: typeof auth === 'string' ? JSON.parse(Buffer.from(auth, 'base64url').toString()) : undefined,
    })
    if (!('error' in lastLine)) present.add(name)
    response.write(`${JSON.stringify({ status: 'pulling' })}\n`)
    setTimeout(() => response.end(`${JSON.stringify(lastLine)}\n`), 20)
  })
  await new Promise<void>((resolve) => server.listen(join(dir, 'engine.sock'), resolve))
  engine = new ContainerEngine(join(dir, 'engine.sock'))
})
afterEach(async () => {
  await engine[Symbol.asyncDispose]()
  server.closeAllConnections()
  server.close()
  await rm(dir, { recursive: true })
})

const signal = AbortSignal.timeout(10_000)
const login = { registry: 'ghcr.io', username: 'me', password: 'secret' }
const images = (pull: PullPolicy) => new Images(engine, { pull, logins: [login] })

test('require() follows the pull policy', async () => {
  await expect(images('never').require('a', signal)).rejects.toMatchObject({ code: 'runtime.image-missing' })
  expect(pulls).toEqual([])
  expect(await images('missing').require('a', signal)).toMatchObject({ Id: 'sha256:a' })
  await images('missing').require('a', signal)
  expect(pulls).toHaveLength(1)
  await images('always').require('a', signal)
  expect(pulls).toHaveLength(2)
})

test('require() sends credentials to the registry of the image only', async () => {
  await images('missing').require('ghcr.io/me/x:1', signal)
  await images('missing').require('me/x:1', signal)
  expect(pulls.map(({ auth }) => auth)).toEqual([
    { username: 'me', password: 'secret', serveraddress: 'ghcr.io' },
    undefined,
  ])
})

test('require() pulls once for concurrent callers, and an aborted caller does not stop the others', async () => {
  const all = images('missing')
  const leaver = new AbortController()
  const left = all.require('a', leaver.signal)
  const stayed = [all.require('a', signal), all.require('a', signal)]
  setTimeout(() => leaver.abort(), 5)
  await expect(left).rejects.toThrow(/abort/)
  await Promise.all(stayed)
  expect(pulls).toHaveLength(1)
})

test("require() throws the registry's message", async () => {
  lastLine = { error: 'denied: 403' }
  await expect(images('missing').require('a', signal)).rejects.toMatchObject({
    code: 'runtime.image-missing',
    message: expect.stringContaining('denied: 403'),
  })
})

test('an unreachable engine is runtime.unavailable', async () => {
  await using nobody = new ContainerEngine(join(dir, 'nobody.sock'))
  await expect(nobody.call('GET', '/info')).rejects.toMatchObject({ code: 'runtime.unavailable' })
})

test.each([
  ['ubuntu:24.04', 'docker.io'],
  ['me/tool', 'docker.io'],
  ['ghcr.io/me/tool', 'ghcr.io'],
  ['localhost/tool', 'localhost'],
  ['host:5000/tool', 'host:5000'],
])('registryOf(%s) is %s', (name, registry) => {
  expect(registryOf(name)).toBe(registry)
})
