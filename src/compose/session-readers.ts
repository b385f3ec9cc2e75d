import { createAttribution } from '../trajectory/attribute-context.ts'
import type { BuildOptions } from '../trajectory/build-session.ts'
import { createRequestReader } from './read-request.ts'
import { isTiny, loadTinyVocabulary, loadVocabulary } from './token-decoder.ts'

/** Returns the readers of a session: of its requests, and of its prompt tokens. `tokenizer` is a folder. */
export async function loadSessionReaders(tokenizer?: string): Promise<NonNullable<BuildOptions['forSession']>> {
  const chosen = tokenizer === undefined ? undefined : await loadVocabulary(tokenizer)
  const tiny = await loadTinyVocabulary()
  return (session) => {
    const reader = createRequestReader(session)
    return { reader, attribute: createAttribution(chosen ?? (isTiny(session) ? tiny : undefined), reader) }
  }
}
