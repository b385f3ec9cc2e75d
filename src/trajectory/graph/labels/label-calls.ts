import type { CallNode } from '../call-graph.ts'
import { compactionHarness } from './compaction-instructions.ts'
import { findSuccessors, groupByConversation, groupByRequest } from './group-calls.ts'
import { subagentByHeaders } from './header-labels.ts'
import type { Histories } from '../parents/histories.ts'
import { labelConversations, type Labelling } from './label-conversations.ts'
import { LaterCalls } from '../parents/later-calls.ts'
import type { PassedOver } from '../parents/passed-over.ts'

/**
 * Labels each call with its purpose. `nodes` are oldest first and have their edges and children. Requests are parsed only if
 * several conversations must be distinguished.
 */
export function labelCalls<N extends CallNode>(
  nodes: readonly N[],
  passedOver: PassedOver,
  histories: Histories,
): Map<N, Labelling> {
  const requests = groupByRequest(nodes, histories)
  const conversations = groupByConversation(nodes, requests)
  const { goneOnFrom, summaries } = findSuccessors(nodes, passedOver, histories)
  const labels = new Map<CallNode, Labelling>()

  for (const node of nodes) {
    const labelling = labelByItself(node, { goneOnFrom, summaries }, histories)
    if (labelling !== undefined) labels.set(node, labelling)
  }
  const unmarked = conversations.map((conversation) => conversation.filter((node) => !labels.has(node)))
  const open = unmarked.filter((conversation) => conversation.length > 0)
  for (const [index, labelling] of labelConversations(open, histories).entries()) {
    for (const node of open[index] ?? []) labels.set(node, labelling)
  }

  const continued = new Set<CallNode>([...goneOnFrom.keys(), ...summaries.keys()])
  const overruled = new Map<CallNode, Labelling>()
  for (const group of requests) markRetries(group, continued, overruled)
  const groupOf = new Map<CallNode, unknown>(requests.flatMap((group) => group.map((node) => [node, group])))
  const isOfOther = (one: CallNode, other: CallNode): boolean => groupOf.get(one) !== groupOf.get(other)
  for (const conversation of conversations) markAbandoned(conversation, isOfOther, { continued, labels, overruled })
  return new Map(nodes.map((node) => [node, overruled.get(node) ?? (labels.get(node) as Labelling)]))
}

interface Verdicts {
  continued: ReadonlySet<CallNode>
  labels: ReadonlyMap<CallNode, Labelling>
  overruled: Map<CallNode, Labelling>
}

/** Labels a call by its headers, the gateway's note, its instruction or the use of its answer. Otherwise undefined. */
function labelByItself(
  node: CallNode,
  { goneOnFrom, summaries }: ReturnType<typeof findSuccessors>,
  histories: Histories,
): Labelling | undefined {
  const byHeader = subagentByHeaders(node.turn)
  if (byHeader !== undefined) return { label: 'subagent', evidence: [byHeader] }
  const summarised = summaries.get(node)
  if (summarised !== undefined) {
    return { label: 'compaction', evidence: [`its answer is the summary that ${summarised.turn.id} begins with`] }
  }
  if (node.turn.forced['purpose'] === 'compaction') {
    return { label: 'compaction', evidence: ['the gateway wrote its instruction, for a request to compact'] }
  }
  const harness = compactionHarness(node, histories)
  if (harness !== undefined && isSetAside(node, goneOnFrom, histories)) {
    return { label: 'compaction', evidence: [`its instruction is the one by which ${harness} compacts`] }
  }
  if (goneOnFrom.has(node) || !losesTools(node, histories)) return undefined
  return {
    label: 'side-call',
    evidence: ['the tools of its conversation were taken away, and nothing went on from it'],
  }
}

/**
 * Whether no call continues a call with a compaction instruction, except one further such call: Gemini CLI requests a review
 * of the summary. The words of an instruction can also enter the agent's own conversation, for example in the output of a
 * command. That conversation is continued, and its calls keep their label.
 */
function isSetAside(node: CallNode, goneOnFrom: ReadonlyMap<CallNode, CallNode>, histories: Histories): boolean {
  const later = goneOnFrom.get(node)
  const successors = new Set([...(later === undefined ? [] : [later]), ...node.children])
  return [...successors].every(
    (next) => !goneOnFrom.has(next) && next.children.length === 0 && compactionHarness(next, histories) !== undefined,
  )
}

/** Whether a call continues a conversation without its tools: the harness uses such an answer itself. */
function losesTools({ edge, turn }: CallNode, histories: Histories): boolean {
  if (edge.verdict !== 'forked' || edge.reason !== 'tools-changed') return false
  return histories.of(turn)?.hasTools === false && histories.of(edge.from.turn)?.hasTools === true
}

/**
 * Among several answers to one request, the continued answers keep their label. If none was continued, the last delivered
 * answer keeps it: a repeated request means that the harness discarded the answer before. All choices of one call keep their
 * label as long as none was continued: that is best-of-n data.
 */
function markRetries(
  group: readonly CallNode[],
  continued: ReadonlySet<CallNode>,
  overruled: Map<CallNode, Labelling>,
): void {
  if (group.length === 1) return
  const taken = group.filter((node) => continued.has(node))
  const takenTurns = new Set(taken.map(({ turn }) => turn))
  const [kept] = taken.length > 0 ? taken : [lastUseful(group)]
  for (const node of group) {
    if (continued.has(node) || kept === undefined || (taken.length === 0 && node.turn === kept.turn)) continue
    if (takenTurns.has(node.turn)) {
      overruled.set(node, {
        label: 'abandoned',
        evidence: [`choice ${kept.choice.index} of the same call was gone on from`],
      })
    } else {
      const how = taken.length > 0 ? 'was gone on from' : 'is the last answer that came through'
      overruled.set(node, { label: 'retry', evidence: [`the same request as ${kept.turn.id}, which ${how}`] })
    }
  }
}

function lastUseful(group: readonly CallNode[]): CallNode | undefined {
  const useful = group.filter(({ turn }) => turn.failure === undefined && turn.endedAt !== undefined)
  return useful.findLast(({ turn }) => turn.delivery === 'delivered') ?? useful.at(-1) ?? group.at(-1)
}

/** Marks answers that no call continues, although the same agent continued the conversation later. */
function markAbandoned(
  conversation: readonly CallNode[],
  isOfOtherRequest: (one: CallNode, other: CallNode) => boolean,
  { continued, labels, overruled }: Verdicts,
): void {
  const labelOf = (node: CallNode): string | undefined => labels.get(node)?.label
  const calls = new LaterCalls(conversation, labelOf)
  for (const node of conversation) {
    const label = labelOf(node)
    if (continued.has(node) || overruled.has(node) || (label !== 'main' && label !== 'subagent')) continue
    const later = calls.lastAfter(node, (other) => isOfOtherRequest(node, other))
    if (later === undefined) continue
    const evidence = [`nothing went on from it, while the conversation did, in ${later.turn.id}`]
    overruled.set(node, { label: 'abandoned', evidence })
  }
}
