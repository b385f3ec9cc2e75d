import type { TurnRequest } from '../../model/turn.ts'
import type { Session } from '../sessions/sessions.ts'
import { steeringOf } from '../../model/steering.ts'
import { continuationOf, type Capabilities, type Upstream } from '../upstreams/upstream.ts'
import type { Continuation } from './continuation.ts'

/** Returns the continuation of a request in its session; undefined when the engine renders every prompt. */
export async function findContinuation(
  request: TurnRequest,
  { continuations }: Pick<Session, 'continuations'>,
  upstream: Upstream,
  signal: AbortSignal,
): Promise<Continuation | undefined> {
  const { capabilities } = upstream
  const { via } = continuationOf(capabilities)
  if (continuations === undefined || via === 'off') return undefined
  const found = await continuations.find(request, (rendered) => upstream.tokenise(rendered, signal), {
    // Only /tokenize does not read the whole chat request.
    needsProof: capabilities.render === 'tokenize',
  })
  const isRejected = found.kind === 'extends' && via === 'completions' && needsChat(request, capabilities)
  return isRejected ? { kind: 'fresh', reason: 'needs-chat' } : found
}

/** Whether a completion cannot answer the request: it knows no grammar, no media and no alternatives of tokens. */
function needsChat(request: TurnRequest, { toolFormat }: Capabilities): boolean {
  const { messages, tools, toolChoice, logprobs, wire } = request
  const hasMedia = messages.some(({ content }) => content.some(({ type }) => type !== 'text'))
  const isUnparsable = tools.length > 0 && toolChoice !== 'none' && toolFormat === undefined
  const hasAlternatives = logprobs && Number(wire.body['top_logprobs'] ?? 0) !== 0
  return steeringOf(request).length > 0 || hasMedia || isUnparsable || hasAlternatives
}

/**
 * Returns the number of prompt tokens of a generation call with this request. The length of a literal continuation may
 * differ from that of a rendering of the same messages.
 */
export async function countPrompt(
  request: TurnRequest,
  session: Session,
  upstream: Upstream,
  signal: AbortSignal,
): Promise<number> {
  const continuation = await findContinuation(request, session, upstream, signal)
  return continuation?.kind === 'extends' ? continuation.promptIds.length : upstream.countTokens(request, signal)
}
