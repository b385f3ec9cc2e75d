import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { expect, onTestFinished, test, vi } from 'vitest'
import { startEngine } from '../../packages/tiny-engine/src/engine.ts'
import { createClient } from '../../src/client/client.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { CliProcess } from '../support/cli-process.ts'
import { copyDatabase } from '../support/database-template.ts'
import { shellTask } from '../support/node-stack.ts'
import type { EngineCall } from '../support/stack.ts'

const SESSIONS = 2
/** The lease of a killed node ends after this time. */
const LEASE_SECONDS = 20
const WAIT = { timeout: 120_000, interval: 50 }

interface Generation extends EngineCall {
  weight_version: string
}

/** Streams one answer after the other, until one ends after the gate file exists. Every prompt is unique. */
const agent = (gate: string): string =>
  bashAgent(`export STREAM=true
    while :; do
      i=$((i + 1))
      answer="$(call "$SESSION_ID $$ $i" 2>&1)"
      case "$answer" in *'[DONE]'*) echo ok >> answered ;; *) printf '%s\\n' "$i" "$answer" | tee -a failed ;; esac
      [ -e ${gate} ] && break
    done`)

test('kill -9 of the server and of a node during weight updates fails no other call, and every token has its version', async () => {
  const dir = await mkdtemp(join(tmpdir(), 'polar-weights-'))
  onTestFinished(() => rm(dir, { recursive: true, force: true, maxRetries: 5, retryDelay: 200 }))
  const log = join(dir, 'engine.jsonl')
  const engine = await startEngine({ script: 'default: { tokens: 12, per_token_ms: 50 }', log })
  onTestFinished(() => engine[Symbol.asyncDispose]())
  const loadWeights = async (version: number): Promise<void> => {
    expect(engine.runningCount).toBe(0)
    const headers = { 'content-type': 'application/json' }
    const body = JSON.stringify({ new_version: String(version) })
    const response = await fetch(`${engine.url}/update_weight_version`, { method: 'POST', headers, body })
    expect(response.status).toBe(200)
  }
  const generations = async (): Promise<Generation[]> =>
    (await readFile(log, 'utf8')).split('\n').flatMap((line) => (line === '' ? [] : (JSON.parse(line) as Generation)))
  /** Waits for answers that were sampled with this version. */
  const untilSampled = (version: string): Promise<void> =>
    vi.waitFor(async () => {
      const sampled = (await generations()).filter(({ weight_version }) => weight_version === version)
      expect(sampled.length).toBeGreaterThan(2 * SESSIONS)
    }, WAIT)

  await copyDatabase(join(dir, 'data/database'))
  await writeFile(join(dir, 'server.yaml'), JSON.stringify({ data: 'data', server: { lease_seconds: LEASE_SECONDS } }))
  const startServer = (port: string): Promise<CliProcess> =>
    CliProcess.start(['server', '--config', 'server.yaml', '--port', port], dir)
  let server = await startServer('0')
  onTestFinished(() => server[Symbol.asyncDispose]())
  const { url } = server.ready
  const tokens = JSON.parse(await readFile(join(dir, 'data/tokens.json'), 'utf8')) as Record<string, string>
  await writeFile(join(dir, 'node.token'), tokens['node']!)
  const client = createClient({ baseUrl: url, token: tokens['trainer']! })

  const startNode = async (id: string): Promise<CliProcess> => {
    const own = [
      'node',
      '--id',
      id,
      '--dir',
      join(dir, id),
      '--runtime',
      'local',
      '--init',
      '1',
      '--ready',
      '0',
      '--run',
      '1',
    ]
    const node = await CliProcess.start(
      [...own, '--server', url, '--token-file', 'node.token', '--engine-url', engine.url],
      dir,
    )
    onTestFinished(() => node[Symbol.asyncDispose]())
    return node
  }
  const [, second] = await Promise.all([startNode('n1'), startNode('n2')])
  const gate = join(dir, 'gate')
  const evaluator = { strategy: 'command', config: { command: 'test -s answered && test ! -e failed' } }
  const task = shellTask(agent(gate), { evaluator, builder: { strategy: 'per_request', config: {} } })
  await client.submitTask({ body: { ...task, task_id: 't', num_samples: SESSIONS, timeout_seconds: 600 } })

  await untilSampled('default')

  // The server dies while the gateways are paused: they stay paused until its successor resumes them.
  await client.pausePolicy({ body: {} })
  await loadWeights(1)
  await server.end('SIGKILL')
  server = await startServer(new URL(url).port)
  expect(engine.runningCount).toBe(0)
  await client.putPolicy({ body: { version: 1, resume: true } })
  await untilSampled('1')

  // A node dies with a stream in flight while a pause waits for it.
  const pausing = client.pausePolicy({ body: {} })
  await second.end('SIGKILL')
  await pausing
  await loadWeights(2)
  await client.putPolicy({ body: { version: 2 } })
  // The restarted node learns the version and the pause when it joins.
  await startNode('n2')
  const { nodes } = await client.putPolicy({ body: { version: 2, resume: true } })
  expect(nodes).toMatchObject(['n1', 'n2'].map((node_id) => ({ node_id, version: 2, confirmed: true })))
  await untilSampled('2')
  await writeFile(gate, '')

  await vi.waitFor(async () => {
    expect(await client.getTask({ params: { task_id: 't' }, query: { results: 'reference' } })).toMatchObject({
      status: 'completed',
    })
  }, WAIT)
  const { results } = await client.getTask({ params: { task_id: 't' }, query: {} })
  expect(results.map(({ status }) => status)).toEqual(Array.from({ length: SESSIONS }, () => 'COMPLETED'))
  const byPrompt = new Map((await generations()).map((each) => [each.prompt_token_ids.join(), each]))
  const seen = new Set<string>()
  for (const { trajectory } of results) {
    // A reward of 1: the agent got a complete answer to each of its calls.
    expect(trajectory.metadata).toMatchObject({ evaluation: { outcome_reward: 1 } })
    for (const trace of trajectory.traces) {
      const generation = byPrompt.get(trace.prompt_ids.join())!
      expect(trace.response_ids).toEqual(generation.choices[0]!.token_ids)
      const spans = trace.metadata['spans'] as { provenance: string; weight_version?: string }[]
      const versions = spans.flatMap((span) =>
        span.provenance === 'sampled' ? (span.weight_version ?? 'default') : [],
      )
      expect(versions).toEqual([generation.weight_version])
      seen.add(generation.weight_version)
    }
  }
  // Sessions of the killed node ran again, and may have tokens of the last version only.
  expect(seen).toContain('2')

  // A running session is cancelled when its oldest token is beyond the staleness limit of its task.
  const waiting = shellTask(bashAgent('call hello > answer; while :; do sleep 0.2; done'))
  await client.submitTask({ body: { ...waiting, task_id: 'stale', staleness_limit: 0 } })
  const before = (await generations()).length
  await vi.waitFor(async () => expect((await generations()).length).toBeGreaterThan(before), WAIT)
  await client.putPolicy({ body: { version: 3 } })
  await vi.waitFor(async () => {
    const { sessions } = await client.listSessions({ query: { task_id: 'stale' } })
    expect(sessions).toMatchObject([{ status: 'CANCELLED' }])
    expect(JSON.stringify(sessions)).toContain('policy version 2, which is too old')
  }, WAIT)
})
