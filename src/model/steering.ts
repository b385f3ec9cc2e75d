import type { Grammar, LogprobMode, Steering, Turn, TurnRequest } from './turn.ts'

/** Kinds of steering that engines enforce by a grammar. */
export const GRAMMARS: readonly Steering[] = ['response-format', 'tool-choice', 'strict-tools']

/**
 * Returns the kind of the log probabilities of a recorded call. Records of earlier versions contain no grammar and name
 * masked log probabilities by the mode of the engine, so a call that a grammar steered counts as masked there.
 */
export function recordedLogprobMode(turn: Pick<Turn, 'response' | 'steeredBy' | 'sampling'>): LogprobMode | undefined {
  const { response, steeredBy = [], sampling } = turn
  const isOldRecord = sampling?.grammar === undefined && steeredBy.some((steering) => GRAMMARS.includes(steering))
  return isOldRecord && response?.logprobMode !== undefined ? 'grammar' : response?.logprobMode
}

/** Lists how a request restricts what the model may sample, besides its sampling parameters. */
export function steeringOf(request: TurnRequest): Steering[] {
  const { responseFormat, toolChoice, strictTools } = grammarOf(request) ?? {}
  const found: [Steering, boolean][] = [
    ['response-format', responseFormat !== undefined],
    ['tool-choice', toolChoice !== undefined],
    ['strict-tools', strictTools !== undefined],
    ['prefill', request.messages.at(-1)?.role === 'assistant'],
  ]
  return found.flatMap(([steering, isPresent]) => (isPresent ? [steering] : []))
}

/**
 * Returns the restrictions of a request that engines enforce by a grammar; undefined if there are none. Other grammar fields
 * of engines are rejected before this function sees a request.
 */
export function grammarOf({ tools, toolChoice, responseFormat }: TurnRequest): Grammar | undefined {
  const strict = toolChoice === 'none' ? [] : tools.filter((tool) => tool.strict === true).map(({ name }) => name)
  const isForced = toolChoice === 'required' || typeof toolChoice === 'object'
  const grammar: Grammar = {
    ...(responseFormat === undefined || responseFormat.type === 'text' ? {} : { responseFormat: responseFormat.type }),
    ...(isForced && tools.length > 0 ? { toolChoice } : {}),
    ...(strict.length === 0 ? {} : { strictTools: strict }),
  }
  return Object.keys(grammar).length === 0 ? undefined : grammar
}
