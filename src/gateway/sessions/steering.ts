import type { Steering, TurnRequest } from '../../model/turn.ts'

/** Lists how a request restricts what the model may sample, besides its sampling parameters. */
export function steeringOf({ messages, tools, toolChoice, responseFormat }: TurnRequest): Steering[] {
  const isForced = toolChoice === 'required' || typeof toolChoice === 'object'
  const found: [Steering, boolean][] = [
    ['response-format', responseFormat !== undefined && responseFormat.type !== 'text'],
    ['tool-choice', isForced && tools.length > 0],
    ['strict-tools', toolChoice !== 'none' && tools.some(({ strict }) => strict === true)],
    ['prefill', messages.at(-1)?.role === 'assistant'],
  ]
  return found.flatMap(([steering, isPresent]) => (isPresent ? [steering] : []))
}
