import type { SessionRecord } from '../../model/session.ts'
import type { Label } from '../../model/sample.ts'
import type { Choice, Turn, TurnResponse } from '../../model/turn.ts'
import type { CallGraph, CallNode, Edge, RequestReader } from './call-graph.ts'
import { ParentChoice } from './parents/choose-parent.ts'
import { diagnoseBreak, diagnoseFork } from './labels/diagnose-fork.ts'
import { findParents, type ParentRef } from './parents/find-parents.ts'
import { Histories } from './parents/histories.ts'
import { labelCalls } from './labels/label-calls.ts'
import { NearestCall } from './parents/nearest-call.ts'
import { PassedOver } from './parents/passed-over.ts'
import { PromptIndex } from './parents/prompt-index.ts'
import { byAge, deliveryRank } from './turn-order.ts'

/** Builds the call forest of a session. Pure; the order of `session.turns` does not matter. */
export function buildGraph(session: SessionRecord, reader: RequestReader): CallGraph {
  const { turns, duplicates } = withoutDuplicates(session.turns)
  const answered = turns.filter(hasAnswer)
  const byTurn = answered.map((turn) => turn.response.choices.map((choice) => new Node(turn, choice)))
  linkParents(answered, byTurn)
  const nodesOf = parentsFirst(byTurn)
  const nodes = nodesOf.flat()
  const histories = new Histories(reader)
  linkForks(nodesOf, histories)
  const passedOver = new PassedOver(nodes, histories)
  for (const node of nodes) notePassedOver(node, passedOver, histories)
  for (const [node, { label, evidence }] of labelCalls(nodes, passedOver, histories)) node.setLabel(label, evidence)
  return { session, nodes, silent: turns.filter((turn) => !hasAnswer(turn)), duplicates }
}

type AnsweredTurn = Turn & { response: TurnResponse }

function hasAnswer(turn: Turn): turn is AnsweredTurn {
  return turn.response !== undefined && turn.response.choices.length > 0
}

/** Mutable node, used only while the graph is built. Readers get a CallNode. */
export class Node implements CallNode {
  readonly key: string
  readonly turn: Turn
  readonly response: TurnResponse
  readonly choice: Choice
  readonly children: Node[] = []
  edge: Edge = { verdict: 'root', reason: 'first-call' }
  label: Label = 'main'
  evidence: readonly string[] = []

  constructor(turn: AnsweredTurn, choice: Choice) {
    this.key = `${turn.id}#${choice.index}`
    this.turn = turn
    this.response = turn.response
    this.choice = choice
  }

  setLabel(label: Label, evidence: readonly string[]): void {
    this.label = label
    this.evidence = evidence
  }
}

// --- records ----------------------------------------------------------------------------------------------------------

/** Keeps the most complete record of each turn. Sorts both lists by age, oldest first. */
function withoutDuplicates(records: readonly Turn[]): { turns: Turn[]; duplicates: Turn[] } {
  const byId = Map.groupBy(records, (turn) => turn.id)
  const turns: Turn[] = []
  const duplicates: Turn[] = []
  for (const same of byId.values()) {
    const [best, ...rest] = same.length === 1 ? same : same.toSorted((a, b) => compareLists(fullness(b), fullness(a)))
    turns.push(best as Turn)
    duplicates.push(...rest)
  }
  return { turns: turns.toSorted(byAge), duplicates: duplicates.toSorted(byAge) }
}

function fullness(turn: Turn): number[] {
  const sampled = turn.response?.choices.reduce((sum, { ids }) => sum + ids.length, 0) ?? -1
  return [Number(turn.endedAt !== undefined), sampled, Number(turn.failure === undefined), deliveryRank(turn)]
}

function compareLists(a: readonly number[], b: readonly number[]): number {
  const at = a.findIndex((value, i) => value !== b[i])
  return at === -1 ? 0 : (a[at] ?? 0) - (b[at] ?? 0)
}

// --- edges ------------------------------------------------------------------------------------------------------------

function linkParents(answered: readonly AnsweredTurn[], nodesOf: readonly Node[][]): void {
  const parents = findParents(
    answered.map(({ response }) => ({ promptIds: response.promptIds, choices: response.choices })),
  )
  const choices = new Map<readonly ParentRef[], ParentChoice<Node>>()
  for (const [index, refs] of parents.entries()) {
    if (refs.length === 0) continue
    const choice = choices.get(refs) ?? new ParentChoice(refs.map((ref) => nodesOf[ref.call]?.[ref.choice] as Node))
    choices.set(refs, choice)
    const parent = choice.for(answered[index] as Turn)
    for (const node of nodesOf[index] ?? []) {
      node.edge = { verdict: 'exact', parent }
      parent.children.push(node)
    }
  }
}

/** Moves each call behind its parent and otherwise keeps the order: some logs record a call before its parent. */
function parentsFirst(byTurn: readonly Node[][]): Node[][] {
  const ofTurn = new Map(byTurn.map((nodes) => [nodes[0]?.turn, nodes]))
  const placed = new Set<Node[]>()
  for (const nodes of byTurn) {
    const chain: Node[][] = []
    for (let next: Node[] | undefined = nodes; next !== undefined && !placed.has(next);) {
      chain.push(next)
      const edge: Edge | undefined = next[0]?.edge
      next = edge?.verdict === 'exact' ? ofTurn.get(edge.parent.turn) : undefined
    }
    for (const ready of chain.reverse()) placed.add(ready)
  }
  return [...placed]
}

/** Sets the edge of calls without a parent: a new conversation, or an earlier one whose history was changed. */
function linkForks(nodesOf: readonly Node[][], histories: Histories): void {
  // The first call is always a root. If every other call has a parent, no fork can exist.
  if (nodesOf.slice(1).every(([node]) => node?.edge.verdict === 'exact')) return
  const nearest = new NearestCall()
  const prompts = new PromptIndex<Node>()
  const added: Node[] = []
  for (const nodes of nodesOf) {
    const [first] = nodes
    if (first?.edge.verdict === 'root') {
      // A repeated prompt gets the edge of the first call with this prompt.
      const original = first.response.promptIds.length === 0 ? first : prompts.findOrAdd(first)
      const edge = original === first ? edgeOf(first, nearest, added, histories) : original.edge
      for (const node of nodes) node.edge = edge
    }
    for (const node of nodes) {
      nearest.add({ promptIds: node.response.promptIds, ids: node.choice.ids })
      added.push(node)
    }
  }
}

/** Records the break if the messages continue a newer call than the parent that the tokens continue. */
function notePassedOver(node: Node, passedOver: PassedOver, histories: Histories): void {
  const { edge } = node
  const from = passedOver.by(node).at(-1)
  if (edge.verdict !== 'exact' || from === undefined) return
  node.edge = { ...edge, passedOver: diagnoseBreak(node, from, histories) }
}

function edgeOf(node: Node, nearest: NearestCall, added: readonly Node[], histories: Histories): Edge {
  if (added.length === 0) return { verdict: 'root', reason: 'first-call' }
  if (node.response.promptIds.length === 0) return { verdict: 'root', reason: 'no-tokens' }
  const found = nearest.find(node.response.promptIds)
  const from = found && added[found.index]
  if (from === undefined) return { verdict: 'root', reason: 'new-conversation' }
  return diagnoseFork(node, { from, commonTokens: found?.common ?? 0, earlier: added }, histories)
}
