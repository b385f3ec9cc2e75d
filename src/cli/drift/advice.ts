import type { ForkReason } from '../../trajectory/graph/call-graph.ts'
import type { Break } from './find-breaks.ts'

interface Advice {
  /** What happened, in general. */
  meaning: string
  /** What to change so that it does not happen again. */
  todo: string
}

/** For every reason a prompt can break; the docs page is checked against it. */
export const ADVICE: Readonly<Record<ForkReason, Advice>> = {
  compaction: {
    meaning: 'the harness put a summary in the place of the conversation',
    todo: 'Nothing is wrong: what came before and after the summary is trained, in two traces. For fewer of them tell the harness of a larger context (polar record --context TOKENS), or switch its compaction off.',
  },
  'edited-history': {
    meaning: 'the harness sent an earlier message back changed',
    todo: 'If what changed is a time, an id or a counter, polar drift --suggest writes a quirk rule that holds it still. Otherwise the harness prunes or rewrites its history: look for a setting that keeps it whole.',
  },
  'tools-changed': {
    meaning: 'tools, model, or what else decides how a prompt is written are others than before',
    todo: 'Keep the tools of a session fixed: start tool servers before the harness does its first call, and switch off modes that add or hide tools on the way.',
  },
  'reasoning-stripped': {
    meaning: 'the reasoning of an earlier turn is not in the prompt any more',
    todo: 'With --continuation preserve the model goes on seeing its own reasoning and the tokens go on. Do so if it will run that way when deployed; else this break is real.',
  },
  retokenised: {
    meaning: 'the same text is written in other tokens than were sampled',
    todo: 'The engine must take prompts as ids: vLLM 0.27 or newer, SGLang 0.5.13 or newer (polar doctor --engine-url URL checks it), and --continuation must not be off.',
  },
  'truncated-turn': {
    meaning: 'the answer was cut, so no end of turn was sampled',
    todo: 'Give answers more room: raise max_tokens (the harness’s, or sampling.max_tokens of the session), and do without stop strings.',
  },
  'template-moves': {
    meaning: 'the chat template writes the same messages differently in a later prompt',
    todo: 'Use a chat template that only appends (--chat-template of the engine); many models have one made for training. With --continuation template, the default, the gateway avoids it where the engine takes ids.',
  },
  forgotten: {
    meaning: 'the gateway had removed the earlier call from the memory of its session',
    todo: 'Raise the memory limit of a session: session_memory_mb in the engine section of the config file, or polar gateway --session-memory MB.',
  },
  unknown: {
    meaning: 'neither messages nor tokens tell why',
    todo: 'Compare the two requests with polar show --call N --full.',
  },
}

/** What to change, for this very break. */
export function adviceFor({ reason, node }: Break): string {
  const { todo } = ADVICE[reason]
  const { forced } = node.turn
  const isUntried = forced['continues'] === undefined && forced['begins'] === undefined
  const canBeSpared = reason === 'retokenised' || reason === 'template-moves'
  if (!isUntried || !canBeSpared) return todo
  return `The gateway did not continue token by token here: --continuation was off, or the engine cannot take ids. ${todo}`
}
