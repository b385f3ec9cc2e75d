import type { Tool } from '../../../model/message.ts'
import type { Turn } from '../../../model/turn.ts'
import type { BreakReason } from '../call-graph.ts'
import type { Histories } from '../parents/histories.ts'

/** Describes a change of tools, system prompt or template settings between two calls; undefined if there is none. */
export function describeSetting(
  now: Turn,
  before: Turn,
  histories: Histories,
): { reason: BreakReason; detail: string } | undefined {
  const [a, b] = [histories.of(before), histories.of(now)]
  if (a === undefined || b === undefined) return undefined
  if (a.tools !== b.tools) {
    const detail = describeTools(histories.requestOf(before)?.tools ?? [], histories.requestOf(now)?.tools ?? [])
    return { reason: 'tools-changed', detail }
  }
  if (a.system !== b.system) return { reason: 'edited-history', detail: 'the system prompt was changed' }
  if (a.setting === b.setting) return undefined
  const isOff = histories.requestOf(now)?.toolChoice === 'none'
  if (isOff !== (histories.requestOf(before)?.toolChoice === 'none')) {
    return { reason: 'tools-changed', detail: `the use of tools was ${isOff ? 'forbidden' : 'allowed again'}` }
  }
  return { reason: 'template-moves', detail: 'thinking or another setting of the chat template was changed' }
}

/** Number of tools listed by name; further tools are only counted. */
const NAMED = 3

function describeTools(before: readonly Tool[], now: readonly Tool[]): string {
  const [old, present] = [toolsByName(before), toolsByName(now)]
  const added = [...present.keys()].filter((name) => !old.has(name))
  const removed = [...old.keys()].filter((name) => !present.has(name))
  const described = [...present].filter(([name, text]) => old.has(name) && old.get(name) !== text).map(([name]) => name)
  if (now.length === 0) return `all ${before.length} tools were taken away`
  const parts = [
    ...listed(added, 'was added', 'were added'),
    ...listed(removed, 'was taken away', 'were taken away'),
    ...listed(described, 'is described differently', 'are described differently'),
  ]
  return parts.length === 0 ? 'the tools come in another order' : parts.join('; ')
}

function toolsByName(tools: readonly Tool[]): Map<string, string> {
  return new Map(tools.map((tool) => [tool.name, JSON.stringify(tool)]))
}

function listed(names: readonly string[], one: string, many: string): string[] {
  if (names.length === 0) return []
  if (names.length === 1) return [`tool ${names[0]} ${one}`]
  const rest = names.length - NAMED
  const shown = names.slice(0, NAMED).join(', ')
  return [`tools ${shown}${rest > 0 ? ` and ${rest} more` : ''} ${many}`]
}
