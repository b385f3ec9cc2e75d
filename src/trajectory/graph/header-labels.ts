import type { Label } from '../../model/sample.ts'
import type { Turn } from '../../model/turn.ts'

/** What a harness itself says a call is for. */
interface HeaderRule {
  header: string
  /** Who sends it; for people. */
  harness: string
  label: (value: string) => Label | undefined
}

const subagent = (): Label => 'subagent'

const RULES: readonly HeaderRule[] = [
  { header: 'x-codex-turn-metadata', harness: 'Codex', label: ofTurnMetadata },
  { header: 'x-openai-subagent', harness: 'Codex', label: ofCodexAgent },
  { header: 'x-codex-parent-thread-id', harness: 'Codex', label: subagent },
  { header: 'x-claude-code-agent-id', harness: 'Claude Code', label: subagent },
  { header: 'x-parent-session-id', harness: 'OpenCode', label: subagent },
]

/** By the headers alone; undefined when they do not say. */
export function labelByHeaders({ headers }: Turn): { label: Label; evidence: string } | undefined {
  for (const { header, harness, label: labelOf } of RULES) {
    const value = headers[header]
    const label = value === undefined ? undefined : labelOf(value)
    if (label !== undefined) return { label, evidence: `${harness} sent the header ${header}` }
  }
  return undefined
}

function ofTurnMetadata(value: string): Label | undefined {
  try {
    const { request_kind: kind } = JSON.parse(value) as { request_kind?: unknown }
    return kind === 'compaction' ? 'compaction' : undefined
  } catch {
    // Recorded headers are cut at a length, which may be in the middle.
    return /"request_kind"\s*:\s*"compaction"/.test(value) ? 'compaction' : undefined
  }
}

/** Codex names the kind: agents that were asked for by a tool call, and its own housekeeping. */
function ofCodexAgent(value: string): Label {
  if (value === 'compact') return 'compaction'
  return value.startsWith('memory') ? 'side-call' : 'subagent'
}
