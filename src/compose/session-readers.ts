import { createAttribution } from '../trajectory/attribute-context.ts'
import type { BuildOptions } from '../trajectory/build-session.ts'
import { createRequestReader } from './read-request.ts'
import { isTiny, loadTinyVocabulary, loadVocabulary } from './token-decoder.ts'

/** How the requests of each session are read, and its prompt tokens told apart. `tokenizer` is a folder. */
export async function loadSessionReaders(tokenizer?: string): Promise<NonNullable<BuildOptions['forSession']>> {
  const given = tokenizer === undefined ? undefined : await loadVocabulary(tokenizer)
  const tiny = await loadTinyVocabulary()
  return (session) => {
    const reader = createRequestReader(session)
    return { reader, attribute: createAttribution(given ?? (isTiny(session) ? tiny : undefined), reader) }
  }
}
