import { expect, test } from 'vitest'
import * as z from 'zod'
import { chatCalls, chatParts, type ChatMessage } from '../../model/chat-message.ts'
import { sampleMessages } from '../../model/sample-facts.ts'
import type { ScoredSession } from '../score-session.ts'
import fc from 'fast-check'
import { anySession, describeExporter, readLines, relabelled, writeFile } from './exporter.contract.ts'
import { AtifConversation } from './atif-conversation.ts'
import { exporters } from './index.ts'

const Extra = z.record(z.string(), z.unknown()).optional()
const Content = z.union([
  z.string(),
  z.array(
    z.discriminatedUnion('type', [
      z.strictObject({ type: z.literal('text'), text: z.string() }),
      z.strictObject({
        type: z.literal('image'),
        source: z.strictObject({
          media_type: z.enum(['image/jpeg', 'image/png', 'image/gif', 'image/webp']),
          path: z.string(),
        }),
      }),
      z.strictObject({
        type: z.literal('audio'),
        source: z.strictObject({ media_type: z.enum(['audio/wav', 'audio/mpeg']), path: z.string() }),
      }),
    ]),
  ),
])

const Step = z
  .strictObject({
    step_id: z.int().min(1),
    timestamp: z.iso.datetime().optional(),
    source: z.enum(['system', 'user', 'agent']),
    model_name: z.string().optional(),
    message: Content,
    reasoning_content: z.string().optional(),
    tool_calls: z
      .array(
        z.strictObject({
          tool_call_id: z.string(),
          function_name: z.string(),
          arguments: z.record(z.string(), z.unknown()),
          extra: z.strictObject({ arguments_text: z.string() }).optional(),
        }),
      )
      .optional(),
    observation: z
      .strictObject({
        results: z.array(z.strictObject({ source_call_id: z.string().optional(), content: Content, extra: Extra })),
      })
      .optional(),
    metrics: z
      .strictObject({
        prompt_tokens: z.int(),
        completion_tokens: z.int(),
        cached_tokens: z.int().optional(),
        prompt_token_ids: z.array(z.int()).optional(),
        completion_token_ids: z.array(z.int()),
        logprobs: z.array(z.number()).optional(),
      })
      .optional(),
    is_copied_context: z.boolean().optional(),
    llm_call_count: z.literal(1).optional(),
    extra: Extra,
  })
  .refine(
    (step) =>
      step.source === 'agent' ||
      (step.model_name ?? step.reasoning_content ?? step.tool_calls ?? step.metrics) === undefined,
    'only agents have models, thoughts, tool calls and metrics',
  )
  .refine(
    ({ observation, tool_calls: calls = [] }) =>
      (observation?.results ?? []).every(
        ({ source_call_id: id }) => id === undefined || calls.some((call) => call.tool_call_id === id),
      ),
    'a result names a call of its own step',
  )
type Step = z.infer<typeof Step>

/** Harbor's models of ATIF v1.8 (harbor/models/trajectories), where sub-agents' trajectories hold no further ones. */
const Conversation = z
  .strictObject({
    schema_version: z.enum(['ATIF-v1.7', 'ATIF-v1.8']),
    session_id: z.string(),
    trajectory_id: z.string(),
    agent: z.strictObject({
      name: z.string(),
      version: z.string(),
      model_name: z.string().optional(),
      tool_definitions: z.array(z.record(z.string(), z.unknown())).optional(),
    }),
    steps: z.array(Step).min(1),
    final_metrics: z.strictObject({
      total_prompt_tokens: z.int(),
      total_completion_tokens: z.int(),
      total_cached_tokens: z.int().optional(),
      total_steps: z.int(),
    }),
    extra: z.record(z.string(), z.unknown()),
  })
  .refine(({ steps }) => steps.every(({ step_id: id }, i) => id === i + 1), 'steps are numbered from 1')
const Trajectory = Conversation.safeExtend({ subagent_trajectories: z.array(Conversation).min(1).optional() })
type Trajectory = z.infer<typeof Trajectory>

function createAtif() {
  return exporters.create({ kind: 'atif', schemaVersion: 'ATIF-v1.8', promptIds: true }, {})
}

function stepsOf({ steps, subagent_trajectories: others = [] }: Trajectory): Step[] {
  return [...steps, ...others.flatMap((other) => other.steps)]
}

function argumentsOf(call: NonNullable<Step['tool_calls']>[number]): string {
  return call.extra?.arguments_text ?? JSON.stringify(call.arguments)
}

function checkAtif(records: unknown[], session: ScoredSession): void {
  const samples = [...session.samples()]
  expect(records).toHaveLength(samples.length === 0 ? 0 : 1)
  if (samples.length === 0) return
  const trajectory = records[0] as Trajectory
  const steps = stepsOf(trajectory)
  const nodes = new Map(session.built.graph.nodes.map((node) => [node.key, node]))

  // Every call of any sample occurs once, in its first sample, with all its data.
  const keys = [...new Set(samples.flatMap(({ calls }) => calls.map(({ key }) => key)))]
  const called = steps.filter(({ llm_call_count: count }) => count === 1)
  expect(new Set(called.map(({ extra }) => `${extra?.['turn_id'] as string}#${extra?.['choice'] as number}`))).toEqual(
    new Set(keys),
  )
  expect(called).toHaveLength(keys.length)
  for (const step of called) {
    const { response, choice } = nodes.get(`${step.extra?.['turn_id'] as string}#${step.extra?.['choice'] as number}`)!
    expect(step.metrics?.completion_token_ids).toEqual([...choice.ids])
    expect(step.metrics?.prompt_token_ids).toEqual([...response.promptIds])
    expect(step.metrics?.logprobs).toEqual(choice.logprobs.some(Number.isNaN) ? undefined : [...choice.logprobs])
    expect(step.reasoning_content).toBe(choice.message.reasoning)
    expect(step.is_copied_context).toBeUndefined()
    expect((step.tool_calls ?? []).map((call) => [call.tool_call_id, call.function_name, argumentsOf(call)])).toEqual(
      choice.message.toolCalls.map((call) => [call.id, call.name, call.arguments]),
    )
  }
  const trained = called.filter(({ extra }) => extra?.['is_trained'] === true)
  expect(trained.flatMap(({ metrics }) => metrics?.completion_token_ids)).toHaveLength(
    samples.reduce((sum, { mask }) => sum + mask.reduce((a, b) => a + b, 0), 0),
  )

  // The steps on the `after_step` path to a sample's last answer are the sample's conversation.
  for (const sample of samples) {
    const last = sample.calls.at(-1)!
    const end = called.find(({ extra }) => extra?.['turn_id'] === last.turnId && extra['choice'] === last.choice)!
    const own = [trajectory, ...(trajectory.subagent_trajectories ?? [])].find(({ steps: all }) => all.includes(end))!
    const path: Step[] = []
    for (
      let id = end.step_id;
      id > 0;
      id = (own.steps[id - 1]?.extra?.['after_step'] as number | undefined) ?? id - 1
    ) {
      path.unshift(own.steps[id - 1]!)
    }
    expect(path.flatMap((step) => stepContents(step, step === end))).toEqual(
      [...sampleMessages(sample)].map(({ message }) => messageContents(message)),
    )
  }

  const { reward } = trajectory.extra as { reward?: number }
  expect(reward).toBe(session.score?.outcome_reward ?? undefined)
  expect(trajectory.final_metrics.total_steps).toBe(trajectory.steps.length)
}

/** The message of a step and its tool results; the results of the last step came after the sample. */
function stepContents(step: Step, isLast: boolean): unknown[] {
  const contents = [roleOf(step), textOf(step.message), (step.tool_calls ?? []).map((call) => call.tool_call_id)]
  const results = isLast ? [] : (step.observation?.results ?? [])
  return [contents, ...results.map(({ content, source_call_id: id }) => ['tool', textOf(content), [id]])]
}

function roleOf({ source }: Step): string {
  return source === 'agent' ? 'assistant' : source
}

function textOf(content: z.infer<typeof Content>): string {
  if (typeof content === 'string') return content
  return content.map((part) => (part.type === 'text' ? part.text : part.source.path)).join('|')
}

function messageContents(message: ChatMessage): unknown[] {
  const text = chatParts(message.content)
    .map((part) => (part.type === 'text' ? part.text : part.type === 'image' ? part.url : ''))
    .join('|')
  const calls = message.role === 'tool' ? [message.tool_call_id] : chatCalls(message).map(({ id }) => id)
  return [message.role, text, calls]
}

describeExporter('atif', {
  create: createAtif,
  read: (file) => readLines(file).map((line) => Trajectory.parse(line)),
  check: checkAtif,
})

test('conversations of sub-agents are separate trajectories inside the main trajectory', () => {
  const perCall = anySession().filter((session) => session.built.summary.builder === 'per_request')
  let embedded = 0
  fc.assert(
    fc.property(perCall, fc.array(fc.boolean(), { minLength: 5, maxLength: 5 }), (session, isSub) => {
      const labelled = relabelled(session, (i) => (isSub[i] === true ? 'subagent' : 'main'))
      const records = readLines(writeFile(createAtif(), [labelled])).map((line) => Trajectory.parse(line))
      checkAtif(records, labelled)
      const subagents = records[0]?.subagent_trajectories ?? []
      expect(new Set(subagents.map(({ trajectory_id: id }) => id)).size).toBe(subagents.length)
      embedded += subagents.length
    }),
    { numRuns: 100 },
  )
  expect(embedded).toBeGreaterThan(0)
})

test('options omit prompts and set the agent’s name', () => {
  const exporter = exporters.create(
    { kind: 'atif', schemaVersion: 'ATIF-v1.8', promptIds: false, agentName: 'codex', agentVersion: '1.2.3' },
    {},
  )
  fc.assert(
    fc.property(anySession(), (session) => {
      for (const line of readLines(writeFile(exporter, [session]))) {
        const trajectory = Trajectory.parse(line)
        expect(trajectory.agent).toMatchObject({ name: 'codex', version: '1.2.3' })
        expect(trajectory.steps.every(({ metrics }) => metrics?.prompt_token_ids === undefined)).toBe(true)
      }
    }),
    { numRuns: 20 },
  )
})

test.each(['ATIF-v1.7', 'ATIF-v1.8'] as const)(
  '--set schemaVersion=%s sets the version of every trajectory',
  (schemaVersion) => {
    const config = exporters.config.parse({ kind: 'atif', schemaVersion })
    const [session] = fc.sample(
      anySession().map((any) => relabelled(any, (i) => (i % 2 === 1 ? 'subagent' : 'main'))),
      { numRuns: 1, seed: 5 },
    )
    const trajectories = readLines(writeFile(exporters.create(config, {}), [session!])).map((line) =>
      Trajectory.parse(line),
    )
    expect(trajectories.length).toBeGreaterThan(0)
    for (const { schema_version: written, subagent_trajectories: others = [] } of trajectories) {
      expect([written, ...others.map((other) => other.schema_version)]).toEqual(
        [written, ...others].map(() => schemaVersion),
      )
    }
  },
)

test('the default version is the newest version that Harbor reads', () => {
  expect(exporters.config.parse({ kind: 'atif' })).toMatchObject({ schemaVersion: 'ATIF-v1.8' })
})

/** The first step of a conversation that begins with audio of these formats. */
function stepWithAudio(hasAudio: boolean, format: string): Step {
  const conversation = new AtifConversation(new Map(), { promptIds: false, hasAudio })
  const audio = { type: 'input_audio', input_audio: { data: 'UklGRg==', format } }
  const message: ChatMessage = { role: 'user', content: [{ type: 'text', text: 'Listen.' }, audio] }
  const json = [...conversation.add([{ message, isPrompt: true, calls: [] }]), ...conversation.end()].join('')
  return Step.parse(JSON.parse(json))
}

test('audio is a content part in v1.8, and kept in extra in v1.7', () => {
  expect(stepWithAudio(true, 'mp3').message).toEqual([
    { type: 'text', text: 'Listen.' },
    { type: 'audio', source: { media_type: 'audio/mpeg', path: 'data:audio/mpeg;base64,UklGRg==' } },
  ])
  const kept = { other_parts: [{ type: 'input_audio', input_audio: { data: 'UklGRg==', format: 'wav' } }] }
  expect(stepWithAudio(false, 'wav')).toMatchObject({ message: [{ type: 'text', text: 'Listen.' }], extra: kept })
})

test('audio of a format that ATIF does not name is kept in extra', () => {
  expect(stepWithAudio(true, 'pcm16').extra).toMatchObject({ other_parts: [{ type: 'input_audio' }] })
})
