import * as z from 'zod'
import type { Plug } from '../../lib/plug.ts'
import type { Sample } from '../../model/sample.ts'
import { sampleMessages } from '../../model/sample-facts.ts'
import type { CallNode } from '../graph/call-graph.ts'
import type { ScoredSession } from '../score-session.ts'
import { AtifConversation } from './atif-conversation.ts'
import type { Exporter } from './exporter.ts'

const Config = z.strictObject({
  kind: z.literal('atif'),
  agentName: z.string().optional().describe('agent.name; default: the harness of the session, or unknown'),
  agentVersion: z.string().optional().describe('agent.version; default: unknown'),
  schemaVersion: z
    .enum(['ATIF-v1.7', 'ATIF-v1.8'])
    .default('ATIF-v1.8')
    .describe('ATIF-v1.7 is for readers without audio parts'),
  promptIds: z.boolean().default(true).describe('Write prompt_token_ids of every call. They repeat the whole history'),
})
type Config = z.infer<typeof Config>

/**
 * ATIF, one trajectory per session and line: the main conversation as steps, with the trajectories of sub-agents embedded.
 * Steps come from the samples, each written once; excluded calls are listed in `extra.exclusions`. ATIF has no field for a
 * reward, so `extra` contains it. A step has `logprobs` only if every token has one.
 */
export const atif: Plug<typeof Config, object, Exporter> = {
  config: Config,
  create: (config) => ({
    name: 'atif',
    extension: 'jsonl',
    isAppendable: true,
    open: () => ({
      *add(session) {
        const [main, ...others] = conversationsOf(session)
        if (main === undefined) return
        yield* writeTrajectory(session, main, config)
        for (const [index, other] of others.entries()) {
          yield index === 0 ? ',"subagent_trajectories":[' : ','
          yield* writeTrajectory(session, other, config)
          yield '}'
        }
        yield others.length > 0 ? ']}\n' : '}\n'
      },
      end: () => [],
    }),
  }),
}

/** The samples of one conversation. */
interface Conversation {
  id: string
  /** Indexes of the session's samples, ascending. */
  samples: ReadonlySet<number>
}

/** Returns the main conversation first; without a main conversation, the oldest first. */
function conversationsOf(session: ScoredSession): Conversation[] {
  const nodes = nodesOf(session)
  const samples = new Map<string, Set<number>>()
  let index = 0
  for (const sample of session.samples()) {
    const key = conversationKey(nodes.get(sample.calls[0]?.key ?? ''))
    samples.set(key, (samples.get(key) ?? new Set()).add(index))
    index += 1
  }
  const { id } = session.built.session
  return [...samples]
    .toSorted(([a], [b]) => Number(b === MAIN) - Number(a === MAIN))
    .map(([key, members], i) => ({ id: i === 0 ? id : `${id}/${key}`, samples: members }))
}

const MAIN = 'main'

/** Retries and abandoned answers belong to the main conversation; other calls to the first call with their label. */
function conversationKey(node: CallNode | undefined): string {
  let call = node
  if (call === undefined) return MAIN
  const { label } = call
  if (label === 'main' || label === 'retry' || label === 'abandoned') return MAIN
  for (let before = beforeOf(call); before?.label === label; before = beforeOf(call)) call = before
  return call.key
}

function beforeOf({ edge }: CallNode): CallNode | undefined {
  switch (edge.verdict) {
    case 'exact':
      return edge.parent
    case 'forked':
      return edge.from
    case 'root':
      return undefined
  }
}

function nodesOf(session: ScoredSession): Map<string, CallNode> {
  return new Map(session.built.graph.nodes.map((node) => [node.key, node]))
}

/** Yields an object without its closing brace, step by step: a line may exceed the maximum length of a string. */
function* writeTrajectory(session: ScoredSession, { id, samples }: Conversation, config: Config): Generator<string> {
  const nodes = nodesOf(session)
  const conversation = new AtifConversation(nodes, {
    promptIds: config.promptIds,
    hasAudio: config.schemaVersion !== 'ATIF-v1.7',
  })
  const isRoot = id === session.built.session.id
  let opened = false
  let first: Sample | undefined
  let index = 0
  for (const sample of session.samples()) {
    if (!samples.has(index++)) continue
    const messages = sample.messages()
    if (!opened) {
      first = sample
      const model = nodes.get(sample.calls[0]?.key ?? '')?.response.model
      const head = {
        schema_version: config.schemaVersion,
        session_id: session.built.session.id,
        trajectory_id: id,
        agent: toAgent(session, config, model, messages.tools),
      }
      yield `${JSON.stringify(head).slice(0, -1)},"steps":[`
      opened = true
    }
    yield* conversation.add(sampleMessages(sample, messages))
  }
  yield* conversation.end()
  yield `],"final_metrics":${JSON.stringify(conversation.totals())}`
  yield `,"extra":${JSON.stringify(isRoot ? rootExtra(session, first) : { label: first?.label })}`
}

function toAgent(
  { built }: ScoredSession,
  config: Config,
  model: string | undefined,
  tools: readonly unknown[] | null,
): Record<string, unknown> {
  const { harness } = built.session.origin
  return {
    name: config.agentName ?? (typeof harness === 'string' ? harness : 'unknown'),
    version: config.agentVersion ?? 'unknown',
    model_name: model,
    ...(tools === null ? {} : { tool_definitions: tools }),
  }
}

function rootExtra({ built, score }: ScoredSession, first: Sample | undefined): Record<string, unknown> {
  return {
    builder: built.summary.builder,
    ...(first?.label === undefined ? {} : { label: first.label }),
    reward: score?.outcome_reward ?? undefined,
    trace_rewards: score?.trace_rewards ?? undefined,
    reward_components: score?.components ?? undefined,
    group_id: score?.group_id ?? undefined,
    ...(first?.advantage === undefined ? {} : { advantage: first.advantage }),
    is_complete: built.session.complete,
    exclusions: built.exclusions.map(({ turnId, choice, tokens, reason, detail }) => ({
      turn_id: turnId,
      choice,
      tokens,
      reason,
      detail,
    })),
  }
}
