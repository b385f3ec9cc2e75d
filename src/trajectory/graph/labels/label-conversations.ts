import type { Label } from '../../../model/sample.ts'
import type { CallNode } from '../call-graph.ts'
import { Errands } from './find-errand.ts'
import { sharedMessages, type Histories } from '../parents/histories.ts'

export interface Labelling {
  label: Label
  evidence: string[]
}

/**
 * What each conversation is for, where no header says it. There is one main agent: the first with tools, since it has to
 * be there before it can send another; without any tools the one that talks longest. A conversation under the same
 * instructions with the same tools is its work too, unless a tool call asked for it.
 */
export function labelConversations(conversations: readonly (readonly CallNode[])[], histories: Histories): Labelling[] {
  if (conversations.length === 1)
    return [{ label: 'main', evidence: ['the only conversation that is not known to be something else'] }]
  const all = conversations.map((nodes) => ({ nodes, hasTools: offersTools(nodes, histories) }))
  const withTools = all.filter(({ hasTools }) => hasTools)
  const main = withTools.length > 0 ? withTools[0] : longest(all)
  const errands = new Errands(conversations, histories)
  const mainTip = main && tipFinder(main.nodes)
  return all.map((conversation) => {
    if (main === undefined || mainTip === undefined || conversation === main) {
      const how = main?.hasTools
        ? 'the first conversation that has tools'
        : 'the longest of conversations without tools'
      return { label: 'main', evidence: [how] }
    }
    return labelOther(conversation, { ...main, tipAt: mainTip }, errands, histories)
  })
}

interface Conversation {
  nodes: readonly CallNode[]
  hasTools: boolean
}

interface MainConversation extends Conversation {
  /** Its last call that had started at a time; its first one when none had. */
  tipAt(time: number): CallNode
}

/** Finds the last call that had started at a time; the calls need not be sorted. */
function tipFinder(nodes: readonly CallNode[]): (time: number) => CallNode {
  // For each call the earliest start from it on: ascending, so that it can be searched by halving.
  const earliest = nodes.map(({ turn }) => turn.startedAt)
  for (let i = earliest.length - 2; i >= 0; i--) earliest[i] = Math.min(earliest[i]!, earliest[i + 1]!)
  return (time) => {
    let [low, high] = [0, earliest.length]
    while (low < high) {
      const middle = (low + high) >>> 1
      if (earliest[middle]! <= time) low = middle + 1
      else high = middle
    }
    return nodes[Math.max(0, low - 1)] as CallNode
  }
}

/** True where the request cannot be read: nothing may be set aside for that. */
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
  errands: Errands,
  histories: Histories,
): Labelling {
  const mainNodes = main.nodes
  const [first, mainFirst] = [nodes[0] as CallNode, mainNodes[0] as CallNode]
  const [own, its] = [histories.of(first.turn), histories.of(mainFirst.turn)]
  if (own === undefined || its === undefined) {
    return { label: 'main', evidence: ['a conversation of its own, and its request cannot be read'] }
  }
  const { asked, returned } = errands.find(nodes)
  const errand = [asked, returned].filter((text) => text !== undefined)
  const isOneStep = nodes.every(({ edge }) => edge.verdict === 'root')
  // A search or a look at a page is asked for by a tool call too; only an agent takes several steps.
  if (asked !== undefined && (hasTools || !isOneStep)) return { label: 'subagent', evidence: errand }
  // An errand of the harness takes one step. An agent that answers in text alone takes several, and another conversation
  // with tools does not make its work a side call.
  if (!hasTools && main.hasTools && !takesSteps(nodes)) {
    return {
      label: 'side-call',
      evidence: ['no tools, while the main conversation has them', ...errand, ...aside(first, mainFirst, histories)],
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

/** Whether a call goes on from the answer of another; the same request with a remark does not. */
function takesSteps(nodes: readonly CallNode[]): boolean {
  return nodes.some(({ edge }) => {
    if (edge.verdict !== 'forked') return edge.verdict === 'exact'
    return edge.reason !== 'edited-history' && edge.reason !== 'tools-changed'
  })
}

/** What besides speaks for a call that the harness makes for itself. */
function aside(first: CallNode, main: CallNode, histories: Histories): string[] {
  const format = histories.requestOf(first.turn)?.responseFormat?.type
  return [
    ...(first.turn.model === main.turn.model ? [] : [`asked of ${first.turn.model}, not of ${main.turn.model}`]),
    ...(format === undefined || format === 'text' ? [] : ['its answer must be JSON']),
  ]
}
