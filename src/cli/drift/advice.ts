import type { BreakReason } from '../../trajectory/graph/call-graph.ts'
import type { Break } from './find-breaks.ts'

interface Advice {
  meaning: string
  todo: string
}

/** Meaning and remedy of every reason why a prompt diverges. A test checks docs/drift.md against it. */
export const ADVICE: Readonly<Record<BreakReason, Advice>> = {
  compaction: {
    meaning: 'the harness replaced the conversation by a summary',
    todo: 'This is not an error: the calls before and after the summary are trained in two traces. For fewer traces, configure the harness with a larger context (polar record --context TOKENS), or disable its compaction.',
  },
  'edited-history': {
    meaning: 'the harness changed an earlier message',
    todo: 'If a time, an id or a counter changed, polar drift --suggest writes a quirk rule that keeps it constant. Otherwise the harness prunes or rewrites its history: disable this in its settings if possible.',
  },
  'tools-changed': {
    meaning: 'tools, model or other settings that determine the prompt have changed',
    todo: 'Keep the tools of a session fixed: start tool servers before the first call of the harness, and disable modes that add or hide tools.',
  },
  'reasoning-stripped': {
    meaning: 'the prompt no longer has the reasoning of an earlier turn',
    todo: 'With --continuation preserve the prompt keeps the reasoning and continues token by token. Use it if the deployed model also keeps its reasoning; otherwise this divergence is correct.',
  },
  retokenised: {
    meaning: 'the prompt has the same text in other tokens than were sampled',
    todo: 'Prompts must be continued as ids: the finding "continuation" of polar doctor --engine-url URL says whether the gateway can do this with the engine, and --continuation must not be off.',
  },
  'truncated-turn': {
    meaning: 'the answer was cut, so no end of turn was sampled',
    todo: 'Raise max_tokens (of the harness, or sampling.max_tokens of the session), and avoid stop strings.',
  },
  'template-moves': {
    meaning: 'the chat template renders the same messages differently in a later prompt',
    todo: 'Use a chat template that only appends (--chat-template of the engine); many models have such a template for training. With --continuation template, the default, the gateway avoids this divergence if the engine accepts ids.',
  },
  forgotten: {
    meaning: 'the gateway had evicted the earlier call from the memory of the session',
    todo: 'Raise the memory limit of a session: session_memory_mb in the engine section of the config file, or polar gateway --session-memory MB.',
  },
  unknown: {
    meaning: 'neither messages nor tokens show the reason',
    todo: 'Compare the two requests with polar show --call N --full.',
  },
}

/** Returns the remedy for a break. */
export function adviceFor({ reason, node, uncontinued }: Break): string {
  const { todo } = ADVICE[reason]
  const { forced } = node.turn
  const isUntried = forced['continues'] === undefined && forced['begins'] === undefined
  const canBeSpared = reason === 'retokenised' || reason === 'template-moves'
  if (!isUntried || !canBeSpared) return todo
  const cause = uncontinued ?? '--continuation was off, or the engine does not accept ids'
  return `The gateway did not continue token by token here: ${cause}. ${todo}`
}
