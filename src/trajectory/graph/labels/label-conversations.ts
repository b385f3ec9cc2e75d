import { countLeading } from '../../../lib/collections/count-leading.ts'
import type { Label } from '../../../model/sample.ts'
import type { CallNode } from '../call-graph.ts'
import { Delegations } from './find-delegation.ts'
import { sharedMessages, type Histories } from '../parents/histories.ts'

export interface Labelling {
  label: Label
  evidence: string[]
}

/**
 * Labels conversations without identifying headers. The first conversation with tools is the main agent's, because sub-agents
 * start later. If no conversation has tools, the longest is the main one. A conversation with the same instructions and tools
 * is also `main`, unless a tool call started it.
 */
export function labelConversations(conversations: readonly (readonly CallNode[])[], histories: Histories): Labelling[] {
  if (conversations.length === 1)
    return [{ label: 'main', evidence: ['the only conversation that is not known to be something else'] }]
  const all = conversations.map((nodes) => ({ nodes, hasTools: offersTools(nodes, histories) }))
  const withTools = all.filter(({ hasTools }) => hasTools)
  const main = withTools.length > 0 ? withTools[0] : longest(all)
  const delegations = new Delegations(conversations, histories)
  const mainTip = main && tipFinder(main.nodes)
  return all.map((conversation) => {
    if (main === undefined || mainTip === undefined || conversation === main) {
      const how = main?.hasTools
        ? 'the first conversation that has tools'
        : 'the longest of conversations without tools'
      return { label: 'main', evidence: [how] }
    }
    return labelOther(conversation, { ...main, tipAt: mainTip }, delegations, histories)
  })
}

interface Conversation {
  nodes: readonly CallNode[]
  hasTools: boolean
}

interface MainConversation extends Conversation {
  /** Returns its last call that had started at `time`; its first call if none had. */
  tipAt(time: number): CallNode
}

/** Returns a function that finds the last call that had started at `time`. The calls need not be sorted. */
function tipFinder(nodes: readonly CallNode[]): (time: number) => CallNode {
  // Earliest start of each call and all calls behind it: ascending, so binary search works.
  const earliest = nodes.map(({ turn }) => turn.startedAt)
  for (let i = earliest.length - 2; i >= 0; i--) earliest[i] = Math.min(earliest[i]!, earliest[i + 1]!)
  return (time) => nodes[Math.max(0, countLeading(earliest.length, (i) => earliest[i]! <= time) - 1)] as CallNode
}

/** True if the request cannot be parsed: an unreadable request must not exclude a call from training. */
function offersTools(nodes: readonly CallNode[], histories: Histories): boolean {
  return histories.of((nodes[0] as CallNode).turn)?.hasTools ?? true
}

function longest(conversations: readonly Conversation[]): Conversation | undefined {
  const sized = conversations.map((conversation) => ({
    conversation,
    calls: new Set(conversation.nodes.map(({ turn }) => turn)).size,
    prompt: conversation.nodes[0]?.response.promptIds.length ?? 0,
  }))
  return sized.toSorted((a, b) => b.calls - a.calls || b.prompt - a.prompt)[0]?.conversation
}

function labelOther(
  { nodes, hasTools }: Conversation,
  main: MainConversation,
  delegations: Delegations,
  histories: Histories,
): Labelling {
  const mainNodes = main.nodes
  const [first, mainFirst] = [nodes[0] as CallNode, mainNodes[0] as CallNode]
  const [own, its] = [histories.of(first.turn), histories.of(mainFirst.turn)]
  if (own === undefined || its === undefined) {
    return { label: 'main', evidence: ['a conversation of its own, and its request cannot be read'] }
  }
  const { asked, returned } = delegations.find(nodes)
  const delegation = [asked, returned].filter((text) => text !== undefined)
  const isOneStep = nodes.every(({ edge }) => edge.verdict === 'root')
  // A tool call can also start a search or a page summary. Only a sub-agent takes several steps.
  if (asked !== undefined && (hasTools || !isOneStep)) return { label: 'subagent', evidence: delegation }
  // A helper call of the harness takes one step. An agent without tools takes several, so its calls are no side calls.
  if (!hasTools && main.hasTools && !takesSteps(nodes)) {
    return {
      label: 'side-call',
      evidence: [
        'no tools, while the main conversation has them',
        ...delegation,
        ...aside(first, mainFirst, histories),
      ],
    }
  }
  if (own.system === its.system && own.tools === its.tools) {
    return { label: 'main', evidence: ['the instructions and tools of the main conversation'] }
  }
  const tip = histories.of(main.tipAt(first.turn.startedAt).turn)
  if (tip !== undefined && sharedMessages(own, tip) > its.messages.length) {
    return { label: 'side-call', evidence: ['is shown the main conversation under other instructions'] }
  }
  if (!hasTools && isOneStep && mainNodes.some(({ edge }) => edge.verdict !== 'root')) {
    return {
      label: 'side-call',
      evidence: ['one call under other instructions', ...aside(first, mainFirst, histories)],
    }
  }
  return { label: 'subagent', evidence: ['other instructions or tools than the main conversation'] }
}

/** Whether a call continues the answer of another call. A repeated request with a remark does not. */
function takesSteps(nodes: readonly CallNode[]): boolean {
  return nodes.some(({ edge }) => {
    if (edge.verdict !== 'forked') return edge.verdict === 'exact'
    return edge.reason !== 'edited-history' && edge.reason !== 'tools-changed'
  })
}

/** Returns further evidence for a helper call of the harness. */
function aside(first: CallNode, main: CallNode, histories: Histories): string[] {
  const format = histories.requestOf(first.turn)?.responseFormat?.type
  return [
    ...(first.turn.model === main.turn.model ? [] : [`asked of ${first.turn.model}, not of ${main.turn.model}`]),
    ...(format === undefined || format === 'text' ? [] : ['its answer must be JSON']),
  ]
}
