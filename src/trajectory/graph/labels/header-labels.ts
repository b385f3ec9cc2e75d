import type { Turn } from '../../../model/turn.ts'

/**
 * Headers by which harnesses name a sub-agent. A program in the sandbox can send any header, so a header never gives a label
 * that leaves a call out of training: compactions and side calls are recognised by their requests and by what became of their
 * answers.
 */
const SUBAGENT_HEADERS: readonly { header: string; harness: string; isMeant?: (value: string) => boolean }[] = [
  { header: 'x-openai-subagent', harness: 'Codex', isMeant: isCodexAgent },
  { header: 'x-codex-parent-thread-id', harness: 'Codex' },
  { header: 'x-claude-code-agent-id', harness: 'Claude Code' },
  { header: 'x-parent-session-id', harness: 'OpenCode' },
]

/** On what grounds the headers name a call as a sub-agent's; undefined when they do not. */
export function subagentByHeaders({ headers }: Turn): string | undefined {
  for (const { header, harness, isMeant } of SUBAGENT_HEADERS) {
    const value = headers[header]
    if (value !== undefined && (isMeant?.(value) ?? true)) return `${harness} sent the header ${header}`
  }
  return undefined
}

/** Codex also marks its own housekeeping with this header. */
function isCodexAgent(value: string): boolean {
  return value !== 'compact' && !value.startsWith('memory')
}
