import type { Turn } from '../../../model/turn.ts'

/**
 * Headers that identify calls of a sub-agent. A program in the sandbox can send any header, so no header gives a label that
 * excludes a call from training: compactions and side calls are recognised by their requests and by the use of their answers.
 */
const SUBAGENT_HEADERS: readonly { header: string; harness: string; isMeant?: (value: string) => boolean }[] = [
  { header: 'x-openai-subagent', harness: 'Codex', isMeant: isCodexAgent },
  { header: 'x-codex-parent-thread-id', harness: 'Codex' },
  { header: 'x-claude-code-agent-id', harness: 'Claude Code' },
  { header: 'x-parent-session-id', harness: 'OpenCode' },
]

/** Returns the evidence that the headers mark a call as a sub-agent's; undefined if there is none. */
export function subagentByHeaders({ headers }: Turn): string | undefined {
  for (const { header, harness, isMeant } of SUBAGENT_HEADERS) {
    const value = headers[header]
    if (value !== undefined && (isMeant?.(value) ?? true)) return `${harness} sent the header ${header}`
  }
  return undefined
}

/** Codex also sends this header with compactions and memory calls. */
function isCodexAgent(value: string): boolean {
  return value !== 'compact' && !value.startsWith('memory')
}
