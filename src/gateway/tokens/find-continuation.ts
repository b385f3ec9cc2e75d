import type { TurnRequest } from '../../model/turn.ts'
import type { Session } from '../sessions/sessions.ts'
import type { Continuation } from './continuation.ts'
import type { Upstream } from '../upstreams/upstream.ts'

/** Returns the continuation of a request in its session; undefined when the engine does not accept prompts as ids. */
export async function findContinuation(
  request: TurnRequest,
  { continuations }: Pick<Session, 'continuations'>,
  upstream: Upstream,
  signal: AbortSignal,
): Promise<Continuation | undefined> {
  const { tokenInChat, render } = upstream.capabilities
  if (continuations === undefined || !tokenInChat || !render) return undefined
  return continuations.find(request, (rendered) => upstream.tokenise(rendered, signal))
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
