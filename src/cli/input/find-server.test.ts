import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { once } from 'node:events'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, onTestFinished, test } from 'vitest'
import { RolloutError } from '../../model/failure.ts'
import {
  obtainTokens,
  readServerNote,
  readTokens,
  removeServerNote,
  writeServerNote,
} from '../../compose/data-folder.ts'
import { explainFailure, findServer } from './find-server.ts'

let dir: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-find-'))
})
afterEach(() => rm(dir, { recursive: true, force: true }))

/** A server that records the tokens of requests. */
async function startEavesdropper(): Promise<{ url: string; seen: (string | undefined)[] }> {
  const seen: (string | undefined)[] = []
  const server = createServer((request, response) => {
    seen.push(request.headers.authorization)
    response.end('{"status":"ok","nodes":0}')
  }).listen(0, '127.0.0.1')
  await once(server, 'listening')
  onTestFinished(() => void server.close())
  return { url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`, seen }
}

function flags(more: { server?: string; 'token-file'?: string; config?: string }) {
  return { config: more.config, dir, server: more.server, 'token-file': more['token-file'] }
}

test('findServer() sends the token of a data folder only to the server of that folder', async () => {
  const own = await startEavesdropper()
  const other = await startEavesdropper()
  const tokens = await obtainTokens(dir)
  await writeServerNote(dir, { url: own.url, pid: process.pid })
  await (await findServer(flags({}))).client.getHealth()
  await (await findServer(flags({ server: other.url }))).client.getHealth()
  expect(own.seen).toEqual([`Bearer ${tokens.trainer}`])
  expect(other.seen).toEqual([undefined])
})

test('findServer() sends a token of a flag to the server of a flag', async () => {
  const server = await startEavesdropper()
  await obtainTokens(dir)
  await writeFile(join(dir, 'my.token'), 'mine\n')
  const found = await findServer(flags({ server: server.url, 'token-file': join(dir, 'my.token') }))
  await found.client.getHealth()
  expect([server.seen, found.isLocal]).toEqual([['Bearer mine'], true])
})

test('findServer() reports a server on another machine as not local', async () => {
  expect((await findServer(flags({ server: 'http://10.0.0.5:8080' }))).isLocal).toBe(false)
  expect((await findServer(flags({ server: 'http://[::1]:8080' }))).isLocal).toBe(true)
})

test('concurrent calls of obtainTokens() return the same tokens', async () => {
  const all = await Promise.all(Array.from({ length: 8 }, () => obtainTokens(dir)))
  expect(new Set(all.map(({ trainer }) => trainer)).size).toBe(1)
  expect(await readTokens(dir)).toEqual(all[0])
})

test('removeServerNote() removes only the note of the same process', async () => {
  await writeServerNote(dir, { url: 'http://127.0.0.1:1', pid: 1 })
  await removeServerNote(dir, 2)
  expect(await readServerNote(dir)).toEqual({ url: 'http://127.0.0.1:1', pid: 1 })
  await removeServerNote(dir, 1)
  expect(await readServerNote(dir)).toBeUndefined()
})

test('explainFailure() returns one line with code and remedy', () => {
  const failure = new RolloutError('request.unauthorized', 'A token is needed.')
  expect((explainFailure(failure) as Error).message).toMatch(
    /^A token is needed\. \(request\.unauthorized\) Set a token .*--token-file[^\n]*$/,
  )
  const bug = new TypeError('x')
  expect(explainFailure(bug)).toBe(bug)
})
