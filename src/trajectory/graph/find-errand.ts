import { textOf } from '../../model/message.ts'
import type { CallNode } from './call-graph.ts'
import type { Histories } from './histories.ts'

/** Shorter texts are the same by chance. */
const SHORTEST = 8

/** Who asked for a conversation by a tool call, and who got its answer; in words. */
interface Errand {
  asked?: string
  returned?: string
}

/** A tool call and all texts in its arguments. */
export interface ToolText {
  node: CallNode
  name: string
  texts: readonly string[]
}

/** Worked out once for all conversations of a session. */
export function toolTextsOf(nodes: readonly CallNode[]): ToolText[] {
  return nodes.flatMap((node) =>
    node.choice.message.toolCalls.map(({ name, arguments: args }) => ({ node, name, texts: stringsIn(args) })),
  )
}

/**
 * Looks for what ties a sub-agent to the one that sent it: the first user message of its conversation stands in the
 * arguments of a tool call made before, and its last answer in a message to another conversation afterwards.
 */
export function findErrand(
  conversation: readonly CallNode[],
  { all, toolTexts }: { all: readonly (readonly CallNode[])[]; toolTexts: readonly ToolText[] },
  histories: Histories,
): Errand {
  const [first, last] = [conversation[0] as CallNode, conversation.at(-1) as CallNode]
  const own = new Set(conversation)
  const asked = whoAsked(
    first,
    toolTexts.filter(({ node }) => node.turn.startedAt <= first.turn.startedAt && !own.has(node)),
    histories,
  )
  if (asked === undefined) return {}
  const others = all.filter((nodes) => nodes !== conversation)
  const returned = whoGotAnswer(last, others, histories)
  return { asked, ...(returned === undefined ? {} : { returned }) }
}

function whoAsked(first: CallNode, earlier: readonly ToolText[], histories: Histories): string | undefined {
  const messages = histories.requestOf(first.turn)?.messages ?? []
  const answered = messages.findIndex(({ role }) => role === 'assistant')
  const tasks = messages
    .slice(0, answered === -1 ? messages.length : answered)
    .filter(({ role }) => role === 'user')
    .flatMap(({ content }) => content)
    .map((part) => (part.type === 'text' ? part.text.trim() : ''))
    .filter((text) => text.length >= SHORTEST)
  const found = earlier.find(({ texts }) => texts.some((text) => tasks.some((task) => isTask(task, text))))
  return found && `its first message stands in the arguments of ${found.name} in ${found.node.turn.id}`
}

/** The harness may wrap what the tool call says, but not in more than that. */
function isTask(task: string, text: string): boolean {
  return task === text || (text.length * 2 >= task.length && task.includes(text))
}

function whoGotAnswer(
  last: CallNode,
  others: readonly (readonly CallNode[])[],
  histories: Histories,
): string | undefined {
  const { message } = last.choice
  // Some agents must hand their result in by a tool call.
  const results = [textOf(message).trim(), ...message.toolCalls.flatMap((call) => stringsIn(call.arguments))]
  const sought = results.filter((text) => text.length >= SHORTEST)
  if (sought.length === 0) return undefined
  for (const other of others) {
    const turn = other.findLast((node) => node.turn.startedAt >= last.turn.startedAt)?.turn
    if (turn === undefined) continue
    const heard = histories.requestOf(turn)?.messages.filter(({ role }) => role === 'tool' || role === 'user') ?? []
    if (heard.some((from) => sought.some((text) => textOf(from).includes(text)))) {
      return `its last answer stands in a message of ${turn.id}`
    }
  }
  return undefined
}

/** All texts in the arguments of a tool call. */
function stringsIn(args: string): string[] {
  const found: string[] = []
  const open: unknown[] = [parsed(args)]
  for (let value = open.pop(); open.length > 0 || value !== undefined; value = open.pop()) {
    if (typeof value === 'string') {
      if (value.trim().length >= SHORTEST) found.push(value.trim())
    } else if (typeof value === 'object' && value !== null) open.push(...(Object.values(value) as unknown[]))
  }
  return found
}

function parsed(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    return undefined
  }
}
