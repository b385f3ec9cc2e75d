import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import OpenAI from 'openai'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { loadTokenizer, type Tokenizer } from '../../packages/tiny-engine/src/tokenizer.ts'
import { embeddedModelFolder } from '../../packages/tiny-engine/src/model-package.ts'
import { harnessPlaces } from '../../src/compose/harness-folders.ts'
import { openEngine } from '../../src/compose/open-engine.ts'
import { createUpstream } from '../../src/gateway/upstreams/index.ts'
import type { Upstream } from '../../src/gateway/upstreams/upstream.ts'
import { toFailure } from '../../src/model/failure.ts'
import type { Turn } from '../../src/model/turn.ts'
import { findHarness } from '../../src/node/harness/find-harness.ts'
import { harnesses } from '../../src/node/harness/presets/index.ts'
import { factsOf } from '../support/harness-facts.ts'
import { runHarness } from '../support/harness-run.ts'
import type { Scenario } from '../support/harness-scenarios.ts'
import { whyNoHarness } from '../support/installed-harness.ts'
import { toForcedScript, toolConversation, writeForcedScript, type ForcedScript } from './forced-script.ts'
import { compareWithScores, measureSessions, toSequence, type Measured, type Score } from './measure-sessions.ts'
import { Observations } from './observations.ts'
import { RealEngine, type EngineStart } from './real-engine.ts'
import { RealStack } from './real-stack.ts'
import { runConversations, type ConversationRun } from './run-conversations.ts'
import { conversations, dialectNames } from './sdk-conversations.ts'
import { testUpstreamOnEngine, UPSTREAM_SCRIPT } from './upstream-on-engine.ts'
import { readRecordedShapes, recordShapes, WIRE_SCRIPT, writeRecordedShapes } from './wire-exchanges.ts'
import { differences } from './wire-shape.ts'

export interface EngineLane {
  start: EngineStart
  /** Version in the table. */
  version: string
  /** Whether logits processors can force answers. */
  forces: boolean
  /** Every call is captured exactly. Otherwise the share is observed. */
  isExact: boolean
  /** Whether literal continuation must hold for every turn that the model ended itself. */
  continues: boolean
  score(engine: RealEngine): Score
  /** Largest accepted difference to teacher forcing. */
  tolerance: number
  /** Turns of each conversation. */
  turns: number
}

const CLIS = ['codex', 'claude_code', 'gemini_cli', 'qwen_code', 'opencode', 'pi']
const OPENING = 'SCRIPT:talk Please list the files.'

/** The task of the CLIs: three tool calls and an answer. */
const FILE_TASK: Scenario = {
  name: 'files',
  prompt: 'Please create one.txt and two.txt, then read one.txt.',
  steps: (tools, cwd) => [
    { text: 'I create the first file.', tool_calls: [tools.shell('echo one > one.txt && cat one.txt')] },
    { tool_calls: [tools.write('two.txt', 'two\n', cwd)] },
    { tool_calls: [tools.read('one.txt', cwd)] },
    { text: 'FINAL: both files are there.' },
  ],
  files: { 'one.txt': 'one\n', 'two.txt': 'two\n' },
  says: 'FINAL: both files are there.',
  images: false,
}

const TASK_CALLS = 4

/** Tests of one real engine. What they see goes into observed.json and from there into docs/engines.md. */
export function describeEngine(name: string, lane: EngineLane): void {
  describe(name, () => {
    const seen = new Observations(name)
    const startedAt = Date.now()
    let scratch: string
    let scriptFile: string
    let tokenizer: Tokenizer
    let script: ForcedScript
    let engine: RealEngine
    let missing: string | undefined
    const runs: { on?: ConversationRun; off?: ConversationRun } = {}

    beforeAll(async () => {
      seen.version = lane.version
      scratch = await mkdtemp(join(tmpdir(), 'polar-engine-'))
      scriptFile = join(scratch, 'forced.json')
      tokenizer = await loadTokenizer(embeddedModelFolder())
      script = {
        scenarios: {
          talk: toolConversation(lane.turns, 12, tokenizer),
          ...toForcedScript({ scenarios: { slow: [{ tokens: 2000 }] } }, tokenizer).scenarios,
          ...toForcedScript(UPSTREAM_SCRIPT, tokenizer).scenarios,
        },
      }
      await writeForcedScript(scriptFile, script)
      const launched = await RealEngine.launch(startOf())
      if (typeof launched === 'string') {
        missing = launched
        return
      }
      engine = launched
      seen.add('while it loads', await seeLoading(engine))
      await engine.ready()
      seen.add('ready after', `${Math.round(engine.readyAfterMs / 1000)} s`)
    })
    afterAll(async () => {
      await engine?.[Symbol.asyncDispose]()
      await rm(scratch, { recursive: true, force: true })
      if (missing === undefined) seen.add('minutes', ((Date.now() - startedAt) / 60_000).toFixed(0))
      seen.save()
    })

    const startOf = (): EngineStart => ({ ...lane.start, ...(lane.forces ? { forcedTurns: scriptFile } : {}) })
    const choice = (): { url: string; model: string } => ({ url: engine.url, model: engine.model })
    const converseAll = (continuation?: 'off') =>
      runConversations(choice(), {
        turns: lane.turns,
        maxTokens: lane.forces ? 120 : 60,
        opening: OPENING,
        continuation,
      })

    test(`${lane.turns} turns in four dialects, streamed and not, with tools at temperature 1`, async ({ skip }) => {
      if (missing !== undefined) return skip(missing)
      runs.on = await converseAll()
      runs.off = await converseAll('off')
      const [on, off] = [measureSessions(runs.on.sessions), measureSessions(runs.off.sessions)]
      seen.add('calls exact', share(on.exactCalls, on.calls))
      seen.add('edges exact', `${describeEdges(on)}; continuation off: ${describeEdges(off)}`)
      seen.add('samples', `${describeSamples(on)}; continuation off: ${describeSamples(off)}`)
      expect(on.calls).toBe(lane.turns * dialectNames.length * 2)
      if (lane.isExact) expect([on.exactCalls, off.exactCalls]).toEqual([on.calls, off.calls])
      if (lane.continues) expect(on.exactNaturalEdges).toBe(on.naturalEdges)
    })

    test('reported log probabilities equal those of teacher forcing by the engine', async ({ skip }) => {
      if (runs.on === undefined || runs.off === undefined) return skip(missing ?? 'no conversations')
      let [tokens, largest] = [0, 0]
      for (const { turns } of [...runs.on.sessions, ...runs.off.sessions]) {
        const exact = turns.filter(({ response }) => response?.grade === 'exact').map(toSequence)
        const compared = await compareWithScores(exact, lane.score(engine))
        tokens += compared.tokens
        largest = Math.max(largest, compared.largestError)
      }
      seen.add('teacher forcing', `largest error ${largest.toExponential(1)} over ${tokens} tokens`)
      expect(tokens).toBeGreaterThan(100)
      expect(largest).toBeLessThan(lane.tolerance)
    })

    test('doctor promises what the session did', ({ skip }) => {
      if (runs.on === undefined) return skip(missing ?? 'no conversations')
      const { report, sessions } = runs.on
      const measured = measureSessions(sessions)
      const promises = report.findings.map(({ meaning }) => meaning).join(' ')
      const promisesSample = promises.includes('a session can be one training sample')
      const promisesExact = promises.includes('Whole answers are graded exact.')
      const isLiteral = measured.exactNaturalEdges === measured.naturalEdges
      seen.add('doctor', promisesSample ? 'promises one sample for each session' : 'promises no literal continuation')
      if (promisesSample) expect(isLiteral, describeEdges(measured)).toBe(true)
      if (promisesExact && lane.isExact) expect(measured.exactCalls).toBe(measured.calls)
    })

    test('an aborted call stops the engine', async ({ skip }) => {
      if (missing !== undefined) return skip(missing)
      await using stack = await RealStack.start(choice())
      const client = await clientOf(stack)
      const body = {
        model: 'x',
        messages: [{ role: 'user' as const, content: 'SCRIPT:slow Tell me a very long story.' }],
        max_tokens: 2000,
      }
      const abort = new AbortController()
      const pending = client.chat.completions.create(body, { signal: abort.signal }).catch(() => 'aborted')
      await until(async () => (await engine.runningRequests()) > 0)
      abort.abort()
      const abortedAt = performance.now()
      await until(async () => (await engine.runningRequests()) === 0)
      seen.add('abort', `no running request after ${Math.round(performance.now() - abortedAt)} ms`)
      expect(await pending).toBe('aborted')
    })

    test('more calls than the engine runs at once are all answered', async ({ skip }) => {
      if (missing !== undefined) return skip(missing)
      await using stack = await RealStack.start(choice())
      const { id, baseUrl, key } = await stack.openSession()
      const client = new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey: key, maxRetries: 0 })
      const bodies = Array.from({ length: 24 }, (_, i) => ({
        model: 'x',
        messages: [{ role: 'user' as const, content: `Say ${i}.` }],
        max_tokens: 8,
      }))
      await Promise.all(bodies.map((body) => client.chat.completions.create(body)))
      const { turns } = await stack.recorded(id)
      const exact = turns.filter(({ response }) => response?.grade === 'exact').length
      seen.add('24 calls at once', `${share(exact, turns.length)} exact`)
      expect(turns).toHaveLength(24)
      if (lane.isExact) expect(exact).toBe(24)
    })

    test('a wrong model name', async ({ skip }) => {
      if (missing !== undefined) return skip(missing)
      const failure = await RealStack.start({ url: engine.url, model: 'no-such-model' }).then(
        async (stack) => {
          await using owned = stack
          return await callFailure(owned, 'hi')
        },
        (error: unknown) => toFailure(error),
      )
      seen.add('wrong model', failure === undefined ? 'answered' : `${failure.code} (${failure.status})`)
      expect(failure?.code).not.toBe('internal.bug')
    })

    test('a prompt over the context limit is reported as such in four dialects', async ({ skip }) => {
      if (missing !== undefined) return skip(missing)
      await using stack = await RealStack.start(choice())
      const codes: string[] = []
      for (const dialect of dialectNames) {
        const { id, baseUrl, key } = await stack.openSession()
        const conversation = conversations[dialect]({ baseUrl, key, model: 'x', stream: false, maxTokens: 10 })
        await expect(conversation.send({ user: 'word '.repeat(60_000) })).rejects.toMatchObject({ status: 400 })
        codes.push(...(await stack.recorded(id)).turns.map(({ failure }) => failure?.code ?? 'none'))
      }
      seen.add('context overflow', [...new Set(codes)].join(', '))
      expect(codes).toEqual(dialectNames.map(() => 'request.context-overflow'))
    })

    test('several choices, and an answer that a stop string ends', async ({ skip }) => {
      if (missing !== undefined) return skip(missing)
      const several = await oneTurn({ n: 3, max_tokens: 8, content: 'Tell me a story.' })
      const counts = several?.response?.choices.map(({ ids }) => ids.length) ?? []
      seen.add('n = 3', `${counts.length} choices, ${several?.response?.grade}`)
      expect(counts).toHaveLength(3)
      const stopped = await oneTurn({ stop: [' you', ',', '.'], max_tokens: 60, content: 'Tell me a story.' })
      seen.add('stop strings', `${stopped?.response?.grade}`)
      if (!lane.isExact) return
      expect([several, stopped].map((turn) => turn?.response?.grade)).toEqual(['exact', 'exact'])
    })

    if (lane.forces) {
      testUpstreamOnEngine({
        open: () => openUpstream(choice()),
        script: () => script,
        missing: () => missing,
      })
    }

    test('log probabilities under a grammar have a mode of their own if they are not those of the model', async ({
      skip,
    }) => {
      if (missing !== undefined || !lane.forces) return skip(missing ?? 'the engine scores no prompts')
      const parameters = { type: 'object', properties: { command: { type: 'string' } }, required: ['command'] }
      const turn = await oneTurn({
        content: 'List the files.',
        max_tokens: 40,
        temperature: 1,
        tools: [{ type: 'function', function: { name: 'bash', parameters } }],
        tool_choice: 'required',
      })
      const { largestError } = await compareWithScores([toSequence(turn!)], lane.score(engine))
      const mode = turn?.response?.logprobMode
      seen.add('under a grammar', `largest error ${largestError.toFixed(1)}, recorded as ${mode}`)
      if (largestError > lane.tolerance) expect(mode).not.toBe('raw')
    })

    test('answers have the recorded shapes', async ({ skip }) => {
      if (missing !== undefined || !lane.forces) return skip(missing ?? 'only vLLM is recorded')
      await writeForcedScript(scriptFile, toForcedScript(WIRE_SCRIPT, tokenizer))
      const shapes = await recordShapes(engine.url, engine.model)
      await writeForcedScript(scriptFile, script)
      const recorded = readRecordedShapes(lane.start.environment)
      if (recorded === undefined) writeRecordedShapes(lane.start.environment, shapes)
      else expect(differences(shapes, recorded)).toEqual([])
    })

    async function oneTurn({
      content,
      ...fields
    }: Record<string, unknown> & { content: string }): Promise<Turn | undefined> {
      await using stack = await RealStack.start(choice())
      const { id, baseUrl, key } = await stack.openSession()
      const client = new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey: key, maxRetries: 0 })
      await client.chat.completions.create({ model: 'x', messages: [{ role: 'user', content }], ...fields })
      return (await stack.recorded(id)).turns[0]
    }

    test.for(lane.forces ? CLIS : [])('%s finishes the file task', async (cli, { skip }) => {
      if (missing !== undefined) return skip(missing)
      const harness = harnesses.find(({ name: known }) => known === cli)!
      const folders = harnessPlaces(undefined, process.env)
      if ((await findHarness(harness, folders)) === undefined) return skip(whyNoHarness(harness))
      const play = async (played: Parameters<typeof toForcedScript>[0]): Promise<string> => {
        await writeForcedScript(scriptFile, toForcedScript(played, tokenizer))
        return engine.url
      }
      const run = await runHarness(harness, FILE_TASK, { scratch, harnessDir: folders.dir, play })
      const { calls, exactCalls, prefixKept, trajectory } = factsOf(run)
      const { samples, tokens } = measureSessions([run.session])
      seen.add(
        harness.title,
        `${share(exactCalls, calls)} calls exact, ${share(prefixKept, calls - 1)} edges, ${samples} samples of ${tokens} tokens`,
      )
      expect(run.stdout, run.stderr).toContain(FILE_TASK.says)
      expect(exactCalls).toBe(calls)
      // A CLI may send other calls, or repeat one that takes long; the task itself is one sample.
      if (lane.continues) expect(trajectory.merged.main).toEqual({ calls: TASK_CALLS, rows: 1 })
    })

    test('an engine that is killed mid-stream and restarted', async ({ skip }) => {
      if (missing !== undefined) return skip(missing)
      await writeForcedScript(scriptFile, toForcedScript({ scenarios: { slow: [{ tokens: 2000 }] } }, tokenizer))
      await using stack = await RealStack.start(choice())
      const sessions = await Promise.all(dialectNames.map(() => stack.openSession()))
      const pending = sessions.map(({ baseUrl, key }, i) =>
        conversations[dialectNames[i]!]({ baseUrl, key, model: 'x', stream: true, maxTokens: 2000 })
          .send({ user: 'SCRIPT:slow Tell me a very long story.' })
          .then(
            () => 'answered',
            (error: Error) => error.message.slice(0, 80),
          ),
      )
      await until(async () => (await engine.runningRequests()) > 0)
      await engine.kill()
      const messages = await Promise.all(pending)
      const dead = await callFailure(stack, 'hi')
      const { start } = engine
      engine = (await RealEngine.open(start)) as RealEngine
      const again = await callFailure(stack, 'hi')
      const records = await Promise.all(sessions.map(({ id }) => stack.recorded(id)))
      const grades = records.flatMap(({ turns }) => turns.map(({ response }) => response?.grade ?? 'none'))
      const codes = new Set(records.flatMap(({ turns }) => turns.map(({ failure }) => failure?.code ?? 'none')))
      seen.add('killed mid-stream', `${[...codes].join(', ')}; clients see: ${[...new Set(messages)].join(' | ')}`)
      seen.add('while it is down', dead === undefined ? 'answered' : dead.code)
      seen.add('restarted', again === undefined ? 'the same session is answered' : again.code)
      expect(messages).not.toContain('answered')
      expect(grades).not.toContain('exact')
      expect(dead?.code).toMatch(/^upstream\./)
      expect(again).toBeUndefined()
    })
  })
}

async function openUpstream(choice: { url: string; model: string }): Promise<Upstream> {
  const upstream = createUpstream({ kind: 'vllm', ...choice }, { now: () => performance.now() })
  await upstream.probe(AbortSignal.timeout(600_000))
  return upstream
}

/** Polls a condition for at most a minute. */
async function until(condition: () => Promise<boolean>): Promise<void> {
  const deadline = performance.now() + 60_000
  while (!(await condition())) {
    if (performance.now() > deadline) throw new Error('The engine did not get there within a minute.')
    await sleep(20)
  }
}

/** What a gateway that is opened on a loading engine reports. */
async function seeLoading(engine: RealEngine): Promise<string> {
  if (await engine.isHealthy()) return 'ready at once'
  const opened = openEngine({ url: engine.url, model: engine.model, signal: AbortSignal.timeout(5_000) })
  return opened.then(
    async (open) => {
      await open[Symbol.asyncDispose]()
      return 'answers'
    },
    (error: unknown) => toFailure(error).code,
  )
}

async function clientOf(stack: RealStack): Promise<OpenAI> {
  const { baseUrl, key } = await stack.openSession()
  return new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey: key, maxRetries: 0 })
}

/** Failure of a call in a session of its own. */
async function callFailure(stack: RealStack, content: string): Promise<{ code: string; status: number } | undefined> {
  const { id, baseUrl, key } = await stack.openSession()
  const client = new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey: key, maxRetries: 0 })
  const status = await client.chat.completions
    .create({ model: 'x', messages: [{ role: 'user', content }], max_tokens: 4 })
    .then(
      () => 200,
      (error: unknown) => (error instanceof OpenAI.APIError ? (error.status ?? 0) : 0),
    )
  const { turns } = await stack.recorded(id)
  return turns[0]?.failure ?? (status === 200 ? undefined : { code: 'no failure is recorded', status })
}

function share(part: number, whole: number): string {
  return `${part}/${whole}`
}

function describeEdges({ exactNaturalEdges, naturalEdges, exactEdges, edges }: Measured): string {
  const cut = edges === naturalEdges ? '' : ` (${exactEdges}/${edges} with truncated turns)`
  return `${exactNaturalEdges}/${naturalEdges}${cut}`
}

function describeSamples({ samples, tokens }: Measured): string {
  return `${samples} of ${tokens} tokens`
}
