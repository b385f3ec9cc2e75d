import { countLeading } from '../../../lib/collections/count-leading.ts'
import { parseJson } from '../../../lib/json/json-text.ts'
import type { CallNode } from '../call-graph.ts'
import type { WorkLimit } from '../work-limit.ts'

/** Minimum length in characters. Shorter texts are equal by chance. */
export const SHORTEST_TEXT = 8

/** A tool call in the answer of a call. */
export interface ToolUse {
  node: CallNode
  name: string
}

interface Entry {
  use: ToolUse
  text: string
  /** Index of the tool call among all tool calls of the session. */
  index: number
}

/** Index of the texts in the arguments of all tool calls of a session. Built once per session. */
export class ToolTexts {
  readonly #byText = new Map<string, Entry[]>()
  readonly #byLength: readonly Entry[]
  readonly #work: WorkLimit

  constructor(nodes: readonly CallNode[], work: WorkLimit) {
    this.#work = work
    const entries = nodes
      .flatMap((node) => node.choice.message.toolCalls.map((call) => ({ node, call })))
      .flatMap(({ node, call }, index) =>
        stringsIn(call.arguments).map((text) => ({ use: { node, name: call.name }, text, index })),
      )
    for (const entry of entries) {
      const same = this.#byText.get(entry.text)
      if (same === undefined) this.#byText.set(entry.text, [entry])
      else same.push(entry)
    }
    this.#byLength = entries.toSorted((a, b) => a.text.length - b.text.length)
  }

  /**
   * Returns the first tool call with an argument that is a task text or at least half of one: harnesses wrap the
   * argument.
   */
  find(tasks: readonly string[], isEligible: (node: CallNode) => boolean): ToolUse | undefined {
    let first: Entry | undefined
    const consider = (entry: Entry): void => {
      if (first === undefined || entry.index < first.index) first = entry
    }
    for (const task of tasks) {
      const same = this.#byText.get(task)?.find(({ use }) => this.#work.spend(1) && isEligible(use.node))
      if (same !== undefined) consider(same)
      for (let i = this.#countShorter(task.length / 2); i < this.#byLength.length; i++) {
        const entry = this.#byLength[i] as Entry
        if (entry.text.length >= task.length || !this.#work.spend(1)) break
        if (!isEligible(entry.use.node) || (first !== undefined && first.index < entry.index)) continue
        if (this.#work.spend(task.length) && task.includes(entry.text)) consider(entry)
      }
    }
    return first?.use
  }

  #countShorter(length: number): number {
    return countLeading(this.#byLength.length, (i) => (this.#byLength[i] as Entry).text.length < length)
  }
}

/** Returns all texts in the arguments of a tool call. */
export function stringsIn(args: string): string[] {
  const found: string[] = []
  const open: unknown[] = [parseJson(args)]
  for (let value = open.pop(); open.length > 0 || value !== undefined; value = open.pop()) {
    if (typeof value === 'string') {
      if (value.trim().length >= SHORTEST_TEXT) found.push(value.trim())
    } else if (typeof value === 'object' && value !== null) {
      for (const inner of Object.values(value) as unknown[]) open.push(inner)
    }
  }
  return found
}
