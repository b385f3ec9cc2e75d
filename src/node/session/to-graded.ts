import type { ChatMessage } from '../../model/chat-message.ts'
import type { TaskRequest } from '../../model/task.ts'
import type { TranscriptEntry } from '../../model/transcript.ts'
import type { EvaluatorNeeds } from '../../trajectory/evaluators/evaluator.ts'
import type { BuildFacts, LoadedSession } from '../build/session-build.ts'
import type { GradedSession } from './grade-session.ts'

/**
 * What an evaluator reads of a built session. The messages and the record come from the build process and may be large, so
 * they are loaded only for evaluators that read them: the messages by `needs`, the whole record for modules of the user.
 */
export async function toGraded(
  loaded: Pick<LoadedSession, 'head' | 'readConversation' | 'readTranscript' | 'readRecord'>,
  { summary }: Pick<BuildFacts, 'summary'>,
  { strategy, needs }: Pick<NonNullable<TaskRequest['evaluator']>, 'strategy'> & { needs: EvaluatorNeeds },
): Promise<GradedSession> {
  const { turnCount: _, ...head } = loaded.head
  const session = strategy.includes('/') ? await loaded.readRecord() : { ...head, turns: [] }
  if (needs.messages === false) return { session, summary, conversation: notDeclared, transcript: notDeclared }
  const [conversation, transcript] = [await loaded.readConversation(), await loaded.readTranscript()]
  return {
    session,
    summary,
    // Parsed only where an evaluator asks for them.
    conversation: () => JSON.parse(conversation) as ChatMessage[],
    transcript: () => JSON.parse(transcript) as TranscriptEntry[],
  }
}

function notDeclared(): never {
  throw new TypeError('The evaluator reads messages of the session, but declares needs.messages: false.')
}
