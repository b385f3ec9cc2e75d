import { toVisibleLine } from '../../lib/visible-text.ts'
import type { Exclusion } from '../../model/sample.ts'
import type { BuildSummary, BuiltSession } from '../../trajectory/build-session.ts'
import { breakOf, type CallNode, type Edge } from '../../trajectory/graph/call-graph.ts'
import { wireFinishReason } from '../../trajectory/to-trace.ts'
import { formatTable } from './table.ts'

export interface GraphViewOptions {
  /** Print the evidence for each label. */
  evidence: boolean
}

/** Formats the calls of a session as a tree: label, continuation of the previous call, and the sample that trains the call. */
export function formatGraph(built: BuiltSession, options: GraphViewOptions): string {
  const uses = trainingUses(built)
  const { roots, next } = nextCalls(built.graph.nodes)
  const lines = roots.flatMap((root) => formatFrom(root, next, uses, options))
  const silent = built.graph.silent.map(
    (turn) => `${String(turn.index + 1).padStart(3)}  no answer: ${turn.failure?.code ?? 'no end was recorded'}`,
  )
  return [...lines, ...silent].map((line) => `${line}\n`).join('')
}

// --- the tree ---------------------------------------------------------------------------------------------------------

/** Maps each call to the calls that continue it, exactly or not. */
function nextCalls(nodes: readonly CallNode[]): { roots: CallNode[]; next: Map<CallNode, CallNode[]> } {
  const next = new Map<CallNode, CallNode[]>()
  const roots: CallNode[] = []
  for (const node of nodes) {
    const before = beforeOf(node.edge)
    if (before === undefined) roots.push(node)
    else next.set(before, [...(next.get(before) ?? []), node])
  }
  return { roots, next }
}

function beforeOf(edge: Edge): CallNode | undefined {
  switch (edge.verdict) {
    case 'exact':
      return edge.parent
    case 'forked':
      return edge.from
    case 'root':
      return undefined
  }
}

/** Formats a conversation: the longest continuation is not indented; branches are indented below their call. */
function formatFrom(
  root: CallNode,
  next: ReadonlyMap<CallNode, CallNode[]>,
  uses: ReadonlyMap<string, string>,
  options: GraphViewOptions,
): string[] {
  const lines: string[] = []
  const open: { node: CallNode; depth: number }[] = [{ node: root, depth: 0 }]
  for (let item = open.pop(); item !== undefined; item = open.pop()) {
    const { node, depth } = item
    lines.push(...formatCall(node, depth, uses.get(node.key) ?? '', options))
    const following = (next.get(node) ?? []).toSorted((a, b) => sizeFrom(b, next) - sizeFrom(a, next))
    const [straight, ...branches] = following
    if (straight !== undefined) open.push({ node: straight, depth })
    for (const branch of branches.toReversed()) open.push({ node: branch, depth: depth + 1 })
  }
  return [...lines, '']
}

function sizeFrom(node: CallNode, next: ReadonlyMap<CallNode, CallNode[]>): number {
  let size = 0
  const open = [node]
  for (let item = open.pop(); item !== undefined; item = open.pop()) {
    size += 1
    open.push(...(next.get(item) ?? []))
  }
  return size
}

function formatCall(node: CallNode, depth: number, use: string, options: GraphViewOptions): string[] {
  const { turn, choice, response, edge, label } = node
  const broken = breakOf(edge)
  const number = `${turn.index + 1}${response.choices.length > 1 ? String.fromCodePoint(97 + (choice.index % 26)) : ''}`
  const indent = depth === 0 ? '' : `${'│ '.repeat(depth - 1)}├ `
  const below = `${' '.repeat(5)}${'│ '.repeat(depth)}   `
  const read =
    edge.verdict === 'exact' ? `+${response.promptIds.length - wholeOf(edge.parent)}` : `${response.promptIds.length}`
  const line = [
    number.padStart(3),
    ` ${indent}${verdictMark(edge)}`,
    label.padEnd(10),
    `read ${read.padStart(6)}`,
    `sampled ${String(choice.ids.length).padStart(5)}`,
    wireFinishReason(choice.finishReason).padEnd(10),
    use,
  ].join('  ')
  return [
    line.trimEnd(),
    ...(broken
      ? [
          `${below}${broken.reason}, after ${broken.commonTokens} tokens of call ${broken.from.turn.index + 1}: ${toVisibleLine(broken.detail)}`,
        ]
      : []),
    ...(options.evidence ? node.evidence.map((text) => `${below}${label}: ${toVisibleLine(text)}`) : []),
  ]
}

function wholeOf({ response, choice }: CallNode): number {
  return response.promptIds.length + choice.ids.length
}

function verdictMark({ verdict }: Edge): string {
  switch (verdict) {
    case 'root':
      return '● begins'
    case 'exact':
      return '│ exact '
    case 'forked':
      return '✂ forked'
  }
}

/** Maps each call to the sample that trains it, or to the reason of its exclusion. */
function trainingUses(built: BuiltSession): Map<string, string> {
  const uses = new Map<string, string>()
  for (const { turnId, choice, reason } of built.exclusions) uses.set(`${turnId}#${choice}`, `not trained: ${reason}`)
  let index = 0
  for (const sample of built.samples()) {
    for (const call of sample.calls) if (call.isTrained) uses.set(call.key, `sample ${index}`)
    index += 1
  }
  return uses
}

// --- the summary ------------------------------------------------------------------------------------------------------

/** Formats the counts of a built session. */
export function formatSummary(summary: BuildSummary, exclusions: readonly Exclusion[]): string {
  const { tokens, edges, main } = summary
  const rows = [
    ['calls', `${summary.calls}`, namesOf(summary.labels)],
    ['exact edges', `${edges.exact} of ${edges.all}`, namesOf(summary.forks)],
    [
      'samples',
      `${summary.rows}`,
      `${summary.mergeRatio.toFixed(1)} calls in each; main: ${main.calls} calls in ${main.rows}`,
    ],
    ['tokens sampled', `${tokens.sampled}`, `${tokens.trained} trained + ${tokens.excluded} excluded`],
    ['tokens in samples', `${summary.rowTokens}`, 'prompts included'],
    ['out of context', `${summary.mismatchedTokens}`, 'trained tokens whose context differs from what the engine read'],
  ]
  return `${formatTable([['', summary.builder, ''], ...rows])}${formatExclusions(exclusions)}`
}

function namesOf(counts: Readonly<Record<string, number | undefined>>): string {
  return Object.entries(counts)
    .map(([name, count]) => `${count} ${name}`)
    .join(', ')
}

function formatExclusions(exclusions: readonly Exclusion[]): string {
  if (exclusions.length === 0) return ''
  const byDetail = Map.groupBy(exclusions, ({ reason, detail }) => `${reason}: ${detail}`)
  const rows = [...byDetail].map(([detail, list]) => {
    const tokens = list.reduce((sum, exclusion) => sum + exclusion.tokens, 0)
    return [`${list.length}`, `${tokens}`, detail]
  })
  return `\n${formatTable([['excluded', 'tokens', 'reason'], ...rows])}`
}
