import { spawn, spawnSync, type SpawnSyncReturns } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'
import Anthropic from '@anthropic-ai/sdk'
import OpenAI from 'openai'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { loadQuirks } from '../../src/compose/load-quirks.ts'
import { createRequestReader } from '../../src/compose/read-request.ts'
import { textOf } from '../../src/model/message.ts'
import { createCallLogReader } from '../../src/store/call-log/reader.ts'
import { buildGraph } from '../../src/trajectory/graph/build-graph.ts'
import { Stack } from '../support/stack.ts'

const main = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))
const script = `
order:
  - text: I look. 你好
  - text: Found it.
  - { reasoning: hm, text: Well. }
  - text: Bye.
`

let scratch: string
beforeEach(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-drift-'))
})
afterEach(() => rm(scratch, { recursive: true, force: true }))

function polar(...words: string[]): SpawnSyncReturns<string> {
  return spawnSync(process.execPath, [main, ...words], { encoding: 'utf8', env: { ...process.env, COLUMNS: '90' } })
}

interface Access {
  baseUrl: string
  key: string
}

/** Calls the model with the history of the harness and returns its answer. */
type CallModel = (access: Access, system: string, history: readonly string[]) => Promise<string>

const roleOf = (i: number): 'user' | 'assistant' => (i % 2 === 0 ? 'user' : 'assistant')

const callOpenAi: CallModel = async ({ baseUrl, key }, system, history) => {
  const client = new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey: key, maxRetries: 0 })
  const messages = history.map((content, i) => ({ role: roleOf(i), content }))
  const answer = await client.chat.completions.create({
    model: 'tiny',
    messages: [{ role: 'system', content: system }, ...messages],
  })
  return answer.choices[0]?.message.content ?? ''
}

const callAnthropic: CallModel = async ({ baseUrl, key }, system, history) => {
  const client = new Anthropic({ baseURL: baseUrl, apiKey: key, maxRetries: 0 })
  const answer = await client.messages.create({
    model: 'tiny',
    max_tokens: 100,
    system: [
      { type: 'text', text: 'First block.' },
      { type: 'text', text: system },
    ],
    messages: history.map((content, i) => ({ role: roleOf(i), content })),
  })
  return answer.content.map((block) => (block.type === 'text' ? block.text : '')).join('')
}

/** Plays a harness that writes the current time into the system prompt of every call. */
async function converse(access: Access, callModel: CallModel, startsAt: string): Promise<void> {
  const history: string[] = []
  for (const [i, question] of ['Where is it?', 'And now?', 'Sure?', 'Bye.'].entries()) {
    history.push(question)
    const time = new Date(Date.parse(startsAt) + i * 61_007).toISOString()
    history.push(await callModel(access, `You are an agent.\nCurrent time: ${time}\nBe brief.`, history))
  }
}

const startStack = (fields: object = {}): Promise<Stack> =>
  Stack.start({ script, continuation: 'preserve', origin: { engine: { kind: 'tiny' } }, dir: scratch, ...fields })

describe.each([
  ['OpenAI', callOpenAi],
  ['Anthropic', callAnthropic],
])('a harness with the current time in its system prompt, through the SDK of %s', (_, callModel) => {
  test('breaks every continuation; polar drift suggests a rule, and with the rule every continuation is exact', async () => {
    await using stack = await startStack()
    await converse(stack.session, callModel, '2026-01-01T10:00:00.000Z')
    await stack.recorded()
    const session = join(scratch, stack.session.id)

    const shown = polar('drift', session)
    expect([shown.status, shown.stderr]).toEqual([0, ''])
    expect(shown.stdout).toContain('0 of 3 continuations are exact (0 %)')
    expect(shown.stdout).toMatch(/Call 2 +does not continue call 1 token by token: edited-history/)
    expect(shown.stdout).toContain('time: 2026-01-01T10:01:01.007Z')
    expect(polar('drift', session, '--fail').status).toBe(1)

    const { breaks } = JSON.parse(polar('drift', session, '--json', '--call', '3').stdout) as {
      breaks: { call: number; reason: string; token_index: number; before: Side; now: Side }[]
    }
    interface Side {
      text_until: string
      text_from: string
      ids_from: number[]
    }
    expect(breaks.map(({ call, reason }) => [call, reason])).toEqual([[3, 'edited-history']])
    expect(breaks[0]?.before.text_until).toBe(breaks[0]?.now.text_until)
    expect(breaks[0]?.before.ids_from[0]).not.toBe(breaks[0]?.now.ids_from[0])

    const file = join(scratch, 'rules.yaml')
    const suggested = polar('drift', session, '--suggest', '--to', file)
    expect([suggested.status, suggested.stdout]).toEqual([0, ''])
    expect(suggested.stderr).toMatch(/histories that extend an earlier one +0 of 3 +3 of 3/)
    expect(suggested.stderr).toMatch(/continue token by token +0 of 3 +3 of 3/)
    expect(suggested.stderr).toContain(`polar record --quirks ${file}`)
    expect(polar('drift', session, '--suggest', '--to', file)).toMatchObject({ status: 2 })

    const quirks = await loadQuirks(file)
    await using ruled = await startStack({ quirks })
    await converse(ruled.session, callModel, '2027-02-03T04:05:06.789Z')
    const record = await ruled.recorded()
    const reader = createRequestReader(record)
    const edges = buildGraph(record, reader).nodes.map(({ edge }) => edge.verdict)
    expect(edges).toEqual(['root', 'exact', 'exact', 'exact'])
    expect(record.turns.map(({ forced }) => forced['quirks'])).toEqual([1, 2, 3, 4].map(() => ['system-time']))
    // The log stores the requests of the harness; the reader applies the rule, so every call has the same system prompt.
    expect(record.turns[0]?.request).toContain('2027-02-03T04:05:06.789Z')
    const systems = record.turns.map((turn) => textOf(reader.readRequest(turn)!.messages[0]!))
    expect(new Set(systems).size).toBe(1)
    expect(systems[0]).toContain('2026-01-01T10:00:00.000Z')
    expect(polar('drift', join(scratch, ruled.session.id), '--fail').status).toBe(0)
  })
})

test('polar drift suggests no rule for a session without breaks or with breaks that no rule can repair', async () => {
  await using calm = await startStack()
  const same: CallModel = (access, _, history) => callOpenAi(access, 'You are an agent.', history)
  await converse(calm.session, same, '2026-01-01T10:00:00.000Z')
  await calm.recorded()
  expect(polar('drift', join(scratch, calm.session.id), '--suggest').status).toBe(0)

  await using moody = await startStack()
  const moods = ['glad', 'sad', 'mad', 'calm']
  const changing: CallModel = (access, _, history) => callOpenAi(access, `Be ${moods[history.length >> 1]}.`, history)
  await converse(moody.session, changing, '2026-01-01T10:00:00.000Z')
  await moody.recorded()
  const suggested = polar('drift', join(scratch, moody.session.id), '--suggest')
  expect([suggested.status, suggested.stdout]).toEqual([1, ''])
  expect(suggested.stderr).toContain('No rule found')
})

test('polar gateway passes the rules to its processes', async () => {
  const rules = join(scratch, 'rules.json')
  await writeFile(
    rules,
    JSON.stringify({ name: 'clock', find: 'Current time: [^\\n]{1,40}\\n', where: { role: 'system' } }),
  )
  await writeFile(join(scratch, 'script.yaml'), script)
  const words = ['gateway', '--script', join(scratch, 'script.yaml'), '--out', scratch, '--quirks', rules]
  const flags = ['--continuation', 'preserve', '--control-port', '0']
  const child = spawn(process.execPath, [main, ...words, ...flags], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  try {
    const [url] = (await once(createInterface({ input: child.stdout }), 'line')) as [string]
    const token = (await readFile(join(scratch, 'control.token'), 'utf8')).trim()
    const headers = { authorization: `Bearer ${token}` }
    const opened = await fetch(`${url}/sessions`, { method: 'POST', headers, body: '{"session_id": "ruled"}' })
    const access = (await opened.json()) as { base_url: string; api_key: string }
    await converse({ baseUrl: access.base_url, key: access.api_key }, callOpenAi, '2026-01-01T10:00:00.000Z')
    await fetch(`${url}/sessions/ruled`, { method: 'DELETE', headers })
  } finally {
    child.kill('SIGTERM')
    await once(child, 'exit')
  }
  const { exact, reasons } = JSON.parse(polar('drift', join(scratch, 'ruled'), '--json').stdout) as {
    exact: number
    reasons: object
  }
  expect([exact, reasons]).toEqual([3, {}])
  // Every session records its engine, so that its tokens can be decoded.
  const { origin } = await createCallLogReader({ dir: scratch }).load('ruled')
  expect(origin).toMatchObject({ engine: { kind: 'tiny', model: expect.any(String) }, quirks: [{ name: 'clock' }] })
})

test('an invalid rule file is rejected before anything starts, with all reasons', async () => {
  const file = join(scratch, 'bad.yaml')
  await writeFile(file, '- { name: a, find: "abc.*" }\n- { name: B, find: "abc" }\n')
  const run = polar('record', '--quirks', file, '--out', scratch, '--', 'true')
  expect(run.status).toBe(2)
  expect(run.stderr).toContain('0.find: the pattern has "*" at character 5')
  expect(run.stderr).toContain('1.name: must be lower-case')
  expect(polar('record', '--quirks', join(scratch, 'none'), '--', 'true').stderr).toContain('ENOENT')
  expect(await readFile(file, 'utf8')).toContain('abc')
})
