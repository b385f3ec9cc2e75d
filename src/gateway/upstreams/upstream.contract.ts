import { createServer } from 'node:http'
import type { AddressInfo } from 'node:net'
import { json } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import {
  startEngine,
  type Engine,
  type EngineOptions as ServedOptions,
} from '../../../packages/tiny-engine/src/engine.ts'
import type { GenerationRecord } from '../../../packages/tiny-engine/src/generation-log.ts'
import type { Failure } from '../../model/failure.ts'
import { textOf } from '../../model/message.ts'
import type { WireEvent } from '../wire-event.ts'
import { toFailure } from '../../model/failure.ts'
import type { EngineSampling } from '../../model/turn-sampling.ts'
import type { Exactness, TurnRequest, TurnResponse } from '../../model/turn.ts'
import { TurnCapture } from '../capture/capture-turn.ts'
import type { EngineOptions } from './wire/engine-config.ts'
import { bareContext } from '../dialects/dialect.ts'
import { openaiChat } from '../dialects/openai-chat.ts'
import type { Capabilities, SendOptions, Upstream } from './upstream.ts'

export interface UpstreamContract {
  create(options: EngineOptions): Upstream
  /** The embedded engine with the wire of the upstream. */
  engine: Pick<ServedOptions, 'wire' | 'wireVersion' | 'scaleOut'>
  /** The expected capabilities. */
  capabilities: Partial<Capabilities>
  /** The grade of a complete answer. */
  grade: Exactness
  /** The grade of an answer that a stop string ended, and of an answer with characters of several tokens. */
  lesserGrades?: { stopString?: Exactness; unicode?: Exactness }
  /** Prompt ids do not come from the answer, so an answer without them is still exact. */
  findsPromptIds?: boolean
  /** Log probabilities are those of the model even if a grammar restricted the answer. */
  isFreeUnderGrammar?: boolean
}

const SCRIPT = `
scenarios:
  plain: [{ text: "Paris is the capital of France." }]
  unicode: [{ text: "第一行\\n第二行 🐙🐙 and a tab\\t." }]
  tools:
    - reasoning: "I think, therefore"
      text: "Both of them."
      tool_calls:
        - { name: bash, arguments: { command: "echo \\"hi\\" | wc", n: 1.5 } }
        - { name: read, arguments: '{"path":  "a b.txt"}' }
  stop: [{ text: "one two three STOP four five" }]
  slow: [{ tokens: 2000, per_token_ms: 4 }]
  s429: [{ text: x, fault: { kind: status, status: 429, retry_after_seconds: 2 } }]
  s500: [{ text: x, fault: { kind: status, status: 500 } }]
  s503: [{ text: x, fault: { kind: status, status: 503 } }]
  reset: [{ text: x, fault: { kind: reset } }]
  malformed: [{ text: x, fault: { kind: malformed } }]
  cut: [{ text: "some words to send here", fault: { kind: cut, after_tokens: 3 } }]
  no-ids: [{ text: "some words to send here", fault: { kind: omit, fields: [token_ids] } }]
  no-prompt-ids: [{ text: "some words to send here", fault: { kind: omit, fields: [prompt_token_ids] } }]
  no-logprobs: [{ text: "some words to send here", fault: { kind: omit, fields: [logprobs] } }]
  no-usage: [{ text: "some words to send here", fault: { kind: omit, fields: [usage] } }]
  short-ids: [{ text: "some words to send here", fault: { kind: wrong-length, field: token_ids } }]
  short-logprobs: [{ text: "some words to send here", fault: { kind: wrong-length, field: logprobs } }]
default: { text: "It is sunny in Paris today." }
`

const TOOLS = ['bash', 'read'].map((name) => ({
  type: 'function',
  function: { name, description: `Runs ${name}`, parameters: { type: 'object', properties: {} } },
}))

/** The contract of upstreams, tested on the embedded engine, which logs the ids that it read and sampled. */
export function describeUpstream(name: string, contract: UpstreamContract): void {
  describe(name, () => {
    const log: GenerationRecord[] = []
    let engine: Engine
    let upstream: Upstream

    beforeAll(async () => {
      engine = await startEngine({ ...contract.engine, script: SCRIPT, log: (record) => log.push(record) })
      upstream = contract.create({ baseUrl: engine.url, model: 'tiny' })
      await upstream.probe(AbortSignal.timeout(20_000))
    })
    afterAll(async () => {
      await upstream[Symbol.asyncDispose]()
      await engine.close()
    })

    /** Returns the engine's log entries of `work`. */
    async function logged<T>(work: () => Promise<T>): Promise<{ result: T; calls: GenerationRecord[] }> {
      const before = log.length
      const result = await work()
      await settled(engine)
      return { result, calls: log.slice(before) }
    }

    function expectSameAsEngine(response: TurnResponse | undefined, calls: readonly GenerationRecord[]): void {
      const choices = calls.flatMap((call) => call.choices)
      expect(response?.choices.map(({ message }) => message.role)).toEqual(choices.map(() => 'assistant'))
      if (contract.grade === 'text-only') {
        expect(response?.promptIds).toHaveLength(0)
        return
      }
      for (const call of calls) expect(Array.from(response?.promptIds ?? [])).toEqual(call.prompt_token_ids)
      const captured = (response?.choices ?? []).map((choice) => Array.from(choice.ids))
      expect(captured.map(String).toSorted()).toEqual(choices.map((choice) => String(choice.token_ids)).toSorted())
      for (const choice of response?.choices ?? []) {
        const own = choices.find(({ token_ids }) => String(token_ids) === String(Array.from(choice.ids)))
        for (const [i, logprob] of choice.logprobs.entries()) {
          if (!Number.isNaN(logprob)) expect(logprob).toBe(Math.fround(own?.logprobs[i] ?? Number.NaN))
        }
      }
    }

    const both = [
      ['whole', false],
      ['streamed', true],
    ] as const

    test('probe() reports the capabilities of the engine and their consequences', async () => {
      const report = await upstream.probe(AbortSignal.timeout(20_000))
      expect(report.capabilities).toMatchObject(contract.capabilities)
      expect(upstream.capabilities).toEqual(report.capabilities)
      expect(report).toMatchObject({ kind: upstream.kind, url: engine.url, model: 'tiny' })
      for (const finding of report.findings) {
        expect(finding.evidence).not.toBe('')
        expect(finding.meaning).not.toBe('')
      }
      const isExact = report.findings.every(({ verdict }) => verdict !== 'blocking')
      expect(isExact, JSON.stringify(report.findings, null, 1)).toBe(contract.grade === 'exact')
    })

    test.each(both)('a %s answer has the text, ids and log probabilities of the engine', async (_, stream) => {
      const { result, calls } = await logged(() => collect(upstream, request('plain', { stream })))
      expect(result.failure).toBeUndefined()
      expect(result.text).toBe('Paris is the capital of France.')
      expect(result.response).toMatchObject({ grade: contract.grade, choices: [{ finishReason: 'stop' }] })
      expect(result.response?.usage?.completionTokens).toBe(calls[0]?.choices[0]?.token_ids.length)
      expectSameAsEngine(result.response, calls)
      expect(result.forced).toMatchObject({ model: 'tiny' })
    })

    test.each(both)(
      'a %s answer: the sampling of the task replaces that of the harness, and is reported',
      async (_, stream) => {
        const asked = request('plain', { stream, temperature: 1, top_p: 1 })
        const forcedSampling = { temperature: 0.5, topP: 0.9, seed: 7 }
        const { forced, sampling } = await collect(upstream, { ...asked, forcedSampling })
        expect(sampling?.sent).toMatchObject(forcedSampling)
        expect(forced).toMatchObject({ temperature: 0.5, top_p: 0.9, seed: 7 })
        expect(sampling?.defaults).toMatchObject({ temperature: 1, topP: 1 })
        // The embedded engine reports its defaults if its wire can.
        const tells = upstream.capabilities.defaultSampling !== undefined
        expect(sampling?.assumed).toEqual(tells ? [] : Object.keys(sampling?.defaults ?? {}))
      },
    )

    test.each(both)('a %s answer with characters of several tokens', async (_, stream) => {
      const { result, calls } = await logged(() => collect(upstream, request('unicode', { stream })))
      expect(result.text).toBe('第一行\n第二行 🐙🐙 and a tab\t.')
      expect(result.response?.grade).toBe(contract.lesserGrades?.unicode ?? contract.grade)
      expectSameAsEngine(result.response, calls)
    })

    test.each(both)('a %s answer with reasoning and tool calls, arguments as sampled', async (_, stream) => {
      const { result, calls } = await logged(() => collect(upstream, request('tools', { stream, tools: TOOLS })))
      const message = result.response?.choices[0]?.message
      expect(message).toMatchObject({ reasoning: 'I think, therefore', content: [{ text: 'Both of them.' }] })
      expect(message?.toolCalls).toMatchObject([
        { name: 'bash', arguments: '{"command": "echo \\"hi\\" | wc", "n": 1.5}' },
        { name: 'read', arguments: '{"path":  "a b.txt"}' },
      ])
      expect(message?.toolCalls.every(({ id }) => id !== '')).toBe(true)
      expect(result.response).toMatchObject({ grade: contract.grade, choices: [{ finishReason: 'tool-calls' }] })
      expectSameAsEngine(result.response, calls)
    })

    test('a stream that is answered whole has no message on the wire', async () => {
      const { events } = await collect(upstream, request('tools', { stream: true, tools: TOOLS }))
      const deltas = events.filter((event) => event.type === 'choice-delta')
      expect(deltas.length).toBeGreaterThan(0)
      for (const delta of deltas) expect(delta.wire ?? {}).not.toHaveProperty('message')
      if (upstream.capabilities.idsOut && upstream.capabilities.idsInStreams !== 'complete') {
        // The role first, then the whole answer.
        expect(deltas.map((delta) => 'delta' in (delta.wire ?? {}))).toEqual([true, false])
        expect(deltas[0]?.text).toBe('')
      } else expect(deltas.length).toBeGreaterThan(5)
    })

    test.each(both)('several choices in one %s answer', async (_, stream) => {
      const { result, calls } = await logged(() =>
        collect(upstream, request('plain', { stream, n: 2, seed: 7, temperature: 0.7 })),
      )
      expect(result.response?.choices.map(({ index, message }) => [index, textOf(message)])).toEqual([
        [0, 'Paris is the capital of France.'],
        [1, 'Paris is the capital of France.'],
      ])
      expect(result.response?.grade).toBe(contract.grade)
      expectSameAsEngine(result.response, calls)
    })

    test.each(both)('a stop string cuts the text of a %s answer, not its ids', async (_, stream) => {
      const { result, calls } = await logged(() => collect(upstream, request('stop', { stream, stop: ['STOP'] })))
      expect(result.text.trimEnd()).toBe('one two three')
      expect(result.response?.grade).toBe(contract.lesserGrades?.stopString ?? contract.grade)
      expect(result.response?.choices[0]?.finishReason).toBe('stop')
      expectSameAsEngine(result.response, calls)
    })

    test.each(both)('a limit ends a %s answer', async (_, stream) => {
      const { result, calls } = await logged(() => collect(upstream, request('plain', { stream, max_tokens: 3 })))
      expect(result.response).toMatchObject({ grade: contract.grade, choices: [{ finishReason: 'length' }] })
      expect(result.response?.usage?.completionTokens).toBe(3)
      expectSameAsEngine(result.response, calls)
    })

    test('a request of another API', async () => {
      const asked = request('plain', {})
      const other: TurnRequest = { ...asked, wire: { api: 'another', text: '{}', body: {} } }
      const { result, calls } = await logged(() =>
        collect(upstream, { ...other, sampling: { ...other.sampling, topK: 5, minP: 0.01 } }),
      )
      expect(result.text).toBe('Paris is the capital of France.')
      expect(result.response?.grade).toBe(contract.grade)
      expectSameAsEngine(result.response, calls)
    })

    test('tools of a request of another API, and of a request with other types of tools', async () => {
      const asked = request('tools', { tools: TOOLS })
      const body = { tools: [{ name: 'bash', input_schema: {} }] }
      const other = await collect(upstream, { ...asked, wire: { api: 'another', text: JSON.stringify(body), body } })
      expect(other.response?.choices[0]?.message.toolCalls.map(({ name: called }) => called)).toEqual(['bash', 'read'])
      const hosted = request('plain', { tools: [{ type: 'web_search' }], tool_choice: 'auto' })
      expect((await collect(upstream, hosted)).text).toBe('Paris is the capital of France.')
    })

    test.each([
      ['s429', { code: 'upstream.rate-limited', status: 429, retryAfterSeconds: 2 }],
      ['s500', { code: 'upstream.failed', status: 500 }],
      ['s503', { code: 'upstream.overloaded', status: 503 }],
      ['reset', { code: 'upstream.reset' }],
      ['malformed', { code: 'upstream.bad-stream' }],
      ['cut', { code: 'upstream.bad-stream' }],
    ])('%s: the failure has its code, and no answer is graded exact', async (scenario, failure) => {
      for (const stream of [false, true]) {
        const result = await collect(upstream, request(scenario, { stream }))
        expect(result.failure).toMatchObject(failure)
        expect(result.response?.grade).not.toBe('exact')
      }
    })

    const omissions = ['no-ids', 'no-prompt-ids', 'no-logprobs', 'no-usage', 'short-ids', 'short-logprobs']
    test.each(omissions.filter((fault) => !(contract.findsPromptIds === true && fault === 'no-prompt-ids')))(
      '%s: the answer is complete, and is not graded exact',
      async (scenario) => {
        for (const stream of [false, true]) {
          const result = await collect(upstream, request(scenario, { stream }))
          expect(result.failure).toBeUndefined()
          expect(result.text).toBe('some words to send here')
          expect(result.response?.grade).not.toBe('exact')
          expect(result.response?.gradeReasons).not.toEqual([])
        }
      },
    )

    test.each(both)('cancelling a %s call stops the engine', async (_, stream) => {
      const abort = new AbortController()
      const { result, calls } = await logged(async () => {
        const pending = collect(upstream, request('slow', { stream }), { signal: abort.signal })
        while (engine.runningCount === 0) await sleep(2)
        await sleep(60)
        abort.abort()
        return pending
      })
      expect(result.failure?.code).toBe('request.client-gone')
      expect(result.response?.grade).not.toBe('exact')
      expect(calls[0]?.aborted).toBe(true)
      expect(calls[0]?.choices[0]?.token_ids.length).toBeLessThan(1000)
    })

    test('a prompt over the context limit is an overflow; an answer limit over it is lowered', async () => {
      const long = request('plain', { content: `SCRIPT:plain ${'word '.repeat(40_000)}`, max_tokens: 10 })
      expect((await collect(upstream, long)).failure?.code).toBe('request.context-overflow')
      for (const max_tokens of [1_000_000, 32_760]) {
        const { failure, text } = await collect(upstream, request('plain', { max_tokens }))
        expect([failure, text]).toEqual([undefined, 'Paris is the capital of France.'])
      }
      expect(upstream.capabilities.contextTokens).toBe(contract.grade === 'text-only' ? undefined : 32_768)
    })

    test('tokens are counted as the engine reads them', async () => {
      const asked = request('tools', { tools: TOOLS })
      const signal = AbortSignal.timeout(10_000)
      const { calls } = await logged(() => collect(upstream, asked))
      const count = await upstream.countTokens(asked, signal)
      if (upstream.capabilities.render === 'none') {
        expect(count).toBeGreaterThan(10)
        await expect(upstream.tokenise(asked, signal)).rejects.toMatchObject({ code: 'upstream.refused' })
        return
      }
      expect(count).toBe(calls[0]?.prompt_token_ids.length)
      expect(Array.from(await upstream.tokenise(asked, signal))).toEqual(calls[0]?.prompt_token_ids)
    })

    const tokenIn = contract.grade === 'exact' ? both : []
    test.each(tokenIn)(
      'a %s prompt of ids is read unchanged, and the answer is parsed like any other',
      async (_, stream) => {
        const asked = request('tools', { tools: TOOLS, stream })
        const tokens = await upstream.tokenise(asked, AbortSignal.timeout(10_000))
        const promptIds = Int32Array.of(...tokens.subarray(0, -2), 100, 101, ...tokens.subarray(-2))
        const { result, calls } = await logged(() => collect(upstream, asked, { promptIds }))
        expect(calls[0]?.prompt_token_ids).toEqual(Array.from(promptIds))
        expect(result.response).toMatchObject({ grade: 'exact', choices: [{ finishReason: 'tool-calls' }] })
        const message = result.response?.choices[0]?.message
        expect(message).toMatchObject({ reasoning: 'I think, therefore', content: [{ text: 'Both of them.' }] })
        expect(message?.toolCalls).toMatchObject([
          { name: 'bash', arguments: '{"command": "echo \\"hi\\" | wc", "n": 1.5}' },
          { name: 'read', arguments: '{"path":  "a b.txt"}' },
        ])
        expect(new Set(message?.toolCalls.map(({ id }) => id)).size).toBe(2)
        expectSameAsEngine(result.response, calls)
        expect(JSON.stringify(result.forced)).toContain(`${promptIds.length} ids`)
        const isOwn = upstream.capabilities.tokenIn === 'completions'
        expect(result.forced['parsed_by']).toBe(isOwn ? 'gateway' : undefined)
      },
    )

    test.each(tokenIn.slice(0, 1))('a prompt of ids, with %s sampling parameters, limits and choices', async () => {
      const asked = request('plain', { n: 2, seed: 7, temperature: 0.5, max_tokens: 3, stop: ['zzz'] })
      const promptIds = await upstream.tokenise(asked, AbortSignal.timeout(10_000))
      const { result, calls } = await logged(() => collect(upstream, asked, { promptIds }))
      expect(result.response).toMatchObject({
        grade: 'exact',
        choices: [{ finishReason: 'length' }, { finishReason: 'length' }],
      })
      expectSameAsEngine(result.response, calls)
      expect(result.sampling?.sent).toMatchObject({ temperature: 0.5, maxTokens: 3, stop: ['zzz'] })
      const long = await collect(upstream, request('plain', {}), { promptIds: new Int32Array(40_000).fill(20) })
      expect(long.failure).toMatchObject({ code: 'request.context-overflow' })
    })

    test('lists its models', async () => {
      expect(await upstream.listModels(AbortSignal.timeout(10_000))).toEqual(['tiny'])
    })

    test.each(both)(
      'a %s request has no field that the harness may not set, and only the served model',
      async (_, stream) => {
        const secrets = [
          'kv_transfer_params',
          'logit_bias',
          'guided_json',
          'lora_path',
          'vendor',
          'input_ids',
          'id_slot',
        ]
        const smuggled = Object.fromEntries(secrets.map((field) => [field, 'SMUGGLED']))
        const asked = request('plain', {
          ...smuggled,
          stream,
          model: 'base:adapter',
          messages: [{ role: 'user', content: [{ type: 'text', text: 'hi', ...smuggled }], ...smuggled }],
          tools: [{ ...TOOLS[0], ...smuggled, function: { ...TOOLS[0]?.function, ...smuggled } }],
          stream_options: { include_usage: false, ...smuggled },
          chat_template_kwargs: smuggled,
          response_format: { type: 'structural_tag', ...smuggled },
        })
        await using recorder = await startRecorder()
        await using subject = contract.create({ baseUrl: recorder.url, model: 'tiny' })
        await collect(subject, asked)
        await subject.tokenise(asked, AbortSignal.timeout(10_000)).catch(() => {})
        expect(recorder.bodies.length).toBeGreaterThan(0)
        for (const body of recorder.bodies) {
          expect(JSON.stringify(body)).not.toContain('SMUGGLED')
          expect(body).not.toHaveProperty('response_format')
          if ('messages' in body) expect(body).toMatchObject({ model: 'tiny', messages: [{ role: 'user' }] })
        }
        const { dropped } = await upstream.send(request('plain', { stream, vendor: 1 }), {
          signal: AbortSignal.timeout(10_000),
        })
        expect(dropped).toEqual(['vendor'])
      },
    )

    test.each([
      ['tool_choice required', { tools: TOOLS, tool_choice: 'required' }, { toolChoice: 'required' }],
      [
        'a named tool_choice',
        { tools: TOOLS, tool_choice: { type: 'function', function: { name: 'read' } } },
        { toolChoice: { name: 'read' } },
      ],
      ['response_format', { response_format: { type: 'json_object' } }, { responseFormat: 'json-object' }],
      [
        'strict tools',
        { tools: [{ ...TOOLS[0], function: { ...TOOLS[0]?.function, strict: true } }] },
        { strictTools: ['bash'] },
      ],
    ])('the log probabilities of a call under a grammar have a mode of their own: %s', async (_, fields, grammar) => {
      const { logprobs } = upstream.capabilities
      const free = logprobs === 'unknown' ? undefined : logprobs
      for (const stream of [false, true]) {
        const { response, sampling } = await collect(upstream, request('plain', { ...fields, stream }))
        expect(response?.logprobMode).toBe(contract.isFreeUnderGrammar === true ? free : 'grammar')
        expect(sampling?.grammar).toEqual(grammar)
      }
      const unrestricted = await collect(upstream, request('plain', { tools: TOOLS, tool_choice: 'auto' }))
      expect(unrestricted.response?.logprobMode).toBe(free)
      expect(unrestricted.sampling).not.toHaveProperty('grammar')
    })

    test('an unreachable engine', async () => {
      await using nowhere = contract.create({ baseUrl: 'http://127.0.0.1:9', model: 'tiny' })
      expect((await collect(nowhere, request('plain', {}))).failure?.code).toBe('upstream.unreachable')
      await expect(nowhere.probe(AbortSignal.timeout(10_000))).rejects.toMatchObject({ code: 'upstream.unreachable' })
    })
  })
}

/** An engine that records every request body and rejects every request. */
async function startRecorder(): Promise<AsyncDisposable & { url: string; bodies: Record<string, unknown>[] }> {
  const bodies: Record<string, unknown>[] = []
  const server = createServer((incoming, outgoing) => {
    void json(incoming)
      .then((body) => bodies.push(body as Record<string, unknown>))
      .catch(() => {})
      .then(() => outgoing.writeHead(404).end('{"error":{"message":"no"}}'))
  })
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve))
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    bodies,
    async [Symbol.asyncDispose]() {
      server.closeAllConnections()
      await new Promise((resolve) => server.close(resolve))
    },
  }
}

/** A request of a harness of the Chat Completions API. */
export function request(
  scenario: string,
  { content = `SCRIPT:${scenario}`, ...fields }: { content?: string } & Record<string, unknown>,
): TurnRequest {
  const value = { model: 'harness-name', messages: [{ role: 'user', content }], ...fields }
  const text = JSON.stringify(value)
  return openaiChat.parseRequest({ text, value: JSON.parse(text) }, bareContext(openaiChat.routes[0]!))
}

interface Collected {
  events: WireEvent[]
  response: TurnResponse | undefined
  /** Text of the first choice. */
  text: string
  forced: Readonly<Record<string, unknown>>
  sampling: EngineSampling | undefined
  failure: Failure | undefined
}

/** Runs one call to its end and captures it like the gateway. */
export async function collect(
  upstream: Upstream,
  asked: TurnRequest,
  options: Partial<SendOptions> = {},
): Promise<Collected> {
  const capture = new TurnCapture()
  const events: WireEvent[] = []
  let forced: Collected['forced'] = {}
  let sampling: Collected['sampling']
  let failure: Failure | undefined
  try {
    const reply = await upstream.send(asked, { signal: AbortSignal.timeout(20_000), ...options })
    for await (const batch of reply.events) events.push(...batch)
    forced = reply.forced
    sampling = reply.sampling
    failure = events.find((event) => event.type === 'answer-error')?.failure
  } catch (error) {
    failure = toFailure(error)
  }
  for (const event of events) capture.add(event)
  const response = capture.toResponse()
  const [choice] = response?.choices ?? []
  return { events, response, text: choice === undefined ? '' : textOf(choice.message), forced, sampling, failure }
}

/** Waits for the engine's log entry, which is written after the request has ended. */
async function settled(engine: Engine): Promise<void> {
  for (let i = 0; i < 500 && engine.runningCount > 0; i++) await sleep(2)
}
