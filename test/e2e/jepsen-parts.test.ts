import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { afterAll, expect, onTestFinished, test } from 'vitest'
import { openDatabase } from '../../src/store/database.ts'
import { HistoryLog } from '../support/jepsen/history.ts'
import { forward, serve } from '../support/jepsen/http.ts'
import { openNetwork } from '../support/jepsen/network.ts'
import { createChance } from '../support/jepsen/random.ts'
import { findLeft, MARKER } from '../support/jepsen/sweep.ts'
import { CALM, Tap } from '../support/jepsen/tap.ts'
import { startPostgres, whyNoPostgres } from '../support/postgres.ts'

const scratch = await mkdtemp(join(tmpdir(), 'polar-jepsen-parts-'))
afterAll(() => rm(scratch, { recursive: true, force: true }))

const completion = Buffer.from(JSON.stringify({ outcome: { sessionId: 's', attempt: 1, status: 'COMPLETED' } }))
const complete = { method: 'POST', path: '/nodes/n/complete', headers: {}, body: completion }

/** Starts a proxy with faults in front of a server that accepts each request once. */
async function startTap(name: string) {
  const seen: string[] = []
  const server = await serve('127.0.0.1', async ({ path }, outgoing) => {
    const kind = seen.includes(path) ? 'duplicate' : 'accepted'
    seen.push(path)
    const orders = [{ order: { sessionId: 's', attempt: 1 } }]
    outgoing.end(JSON.stringify(path.endsWith('/lease') ? { orders } : { kind }))
  })
  const log = new HistoryLog(join(scratch, `${name}.jsonl`))
  const tap = await Tap.open('127.0.0.1', { serverUrl: server.url, log, chance: createChance(1) })
  onTestFinished(async () => {
    await tap[Symbol.asyncDispose]()
    await server[Symbol.asyncDispose]()
  })
  return { tap, log, seen }
}

test('the proxy logs every lease and every reported result with its response', async () => {
  const { tap, log } = await startTap('written')
  await forward(tap.url, { ...complete, path: '/nodes/n/lease' })
  await forward(tap.url, complete)
  expect(log.entries).toMatchObject([
    { kind: 'order', nodeId: 'n', sessionId: 's', attempt: 1 },
    { kind: 'report', origin: 'node', nodeId: 'n', answer: 'accepted' },
  ])
})

test('a proxy that drops responses forwards the request', async () => {
  const { tap, log, seen } = await startTap('lost')
  tap.weather = { ...CALM, loseAnswer: 1 }
  await expect(forward(tap.url, complete)).rejects.toThrow()
  expect(seen).toHaveLength(1)
  expect(log.entries).toMatchObject([{ kind: 'report', answer: 'accepted' }])
})

test('a proxy that repeats requests forwards each request twice and returns the first response', async () => {
  const { tap, log } = await startTap('twice')
  tap.weather = { ...CALM, repeat: 1 }
  const { body } = await forward(tap.url, complete)
  expect(body.toString()).toContain('accepted')
  expect(log.entries).toMatchObject([
    { origin: 'node', answer: 'accepted' },
    { origin: 'replay', answer: 'duplicate' },
  ])
})

test('a proxy that is cut forwards nothing until it is healed', async () => {
  const { tap, seen } = await startTap('cut')
  tap.cut()
  await expect(forward(tap.url, complete, AbortSignal.timeout(200))).rejects.toThrow()
  expect(seen).toEqual([])
  tap.heal()
  await forward(tap.url, complete)
  expect(seen).toHaveLength(1)
})

test('a node in its own network namespace can connect to the server unless its link is cut', async (context) => {
  using network = openNetwork(2)
  if (network.whyShared !== undefined) return context.skip(network.whyShared)
  for (const { prefix, serverHost, wire } of network.links) {
    await using server = await serve(serverHost, async (_, outgoing) => void outgoing.end('server'))
    await using other = await serve(network.host, async (_, outgoing) => void outgoing.end('engine'))
    const [program = '', ...args] = prefix
    // This process serves the responses, so it must not block.
    const get = async (url: string): Promise<string> => {
      const script = `fetch(process.argv[1], { signal: AbortSignal.timeout(1500) })
        .then((answer) => answer.text()).then(console.log, () => console.log('nothing'))`
      const options = { stdio: ['ignore', 'pipe', 'inherit'] as ['ignore', 'pipe', 'inherit'] }
      const child = spawn(program, [...args, process.execPath, '-e', script, url], options)
      return (await Array.fromAsync(child.stdout)).join('').trim()
    }
    expect(await get(server.url)).toBe('server')
    wire?.cut()
    expect(await get(server.url)).toBe('nothing')
    expect(await get(other.url)).toBe('engine')
    wire?.heal()
    expect(await get(server.url)).toBe('server')
  }
})

test('shift-clock changes the clock of a process, but not its timers', async () => {
  const clock = join(scratch, 'clock')
  await writeFile(clock, '3600000')
  const preload = join(import.meta.dirname, '../support/jepsen/shift-clock.ts')
  const script = `
    const say = () => console.log(Date.now() + ' ' + new Date().getTime() + ' ' + new Date(5).getTime())
    say()
    const began = performance.now()
    setTimeout(() => { say(); console.log(performance.now() - began) }, 300)
  `
  const child = spawn(process.execPath, ['--import', preload, '-e', script], {
    env: { ...process.env, POLAR_JEPSEN_CLOCK: clock },
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const lines: string[] = []
  for await (const line of createInterface(child.stdout)) {
    lines.push(line)
    if (lines.length === 1) await writeFile(clock, '-3600000')
  }
  const offsets = lines.slice(0, 2).map((line) => Math.round((Number(line.split(' ')[0]) - Date.now()) / 60_000))
  expect(offsets).toEqual([60, -60])
  expect(lines[0]?.split(' ').at(-1)).toBe('5')
  expect(Number(lines[2])).toBeLessThan(5000)
})

test('findLeft() finds the processes of a run by their marker', async () => {
  const child = spawn('sleep', ['60'], { env: { [MARKER]: 'parts' }, stdio: 'ignore' })
  await once(child, 'spawn')
  expect(findLeft('parts', scratch)).toEqual([`process ${child.pid}: sleep 60 `])
  child.kill('SIGKILL')
  await once(child, 'exit')
  expect(findLeft('parts', scratch)).toEqual([])
})

test('PostgreSQL is available again after kill -9', async (context) => {
  const reason = whyNoPostgres()
  if (reason !== undefined) return context.skip(reason)
  await using postgres = await startPostgres()
  const url = await postgres.createDatabase('killed')
  await using database = await openDatabase({ url })
  await postgres.crash({ signal: 'SIGKILL', downMs: 100 })
  await expect
    .poll(() =>
      database.db
        .selectFrom('policy')
        .selectAll()
        .execute()
        .then(
          (rows) => rows.length,
          () => 0,
        ),
    )
    .toBe(1)
})
