import type { EngineChoice } from '../../src/compose/open-engine.ts'
import type { ContinuationMode } from '../../src/gateway/sessions/sessions.ts'
import type { ProbeReport } from '../../src/gateway/upstreams/upstream.ts'
import type { SessionRecord } from '../../src/model/session.ts'
import { RealStack } from './real-stack.ts'
import { conversations, converse, dialectNames } from './sdk-conversations.ts'

export interface ConversationRun {
  report: ProbeReport
  sessions: SessionRecord[]
}

export interface ConversationPlan {
  turns: number
  /** Limit of each answer. */
  maxTokens: number
  /** First user message. */
  opening: string
  continuation?: ContinuationMode
}

/** Runs one conversation for each dialect, streamed and not, all at once through one gateway. */
export async function runConversations(
  choice: EngineChoice & { url: string; model: string },
  { turns, maxTokens, opening, continuation }: ConversationPlan,
): Promise<ConversationRun> {
  await using stack = await RealStack.start(choice, continuation)
  const sessions = dialectNames.flatMap((dialect) =>
    [true, false].map(async (stream) => {
      const { id, baseUrl, key } = await stack.openSession()
      const options = { baseUrl, key, model: choice.model, stream, maxTokens }
      await converse(
        conversations[dialect](options),
        turns,
        `${opening} (${dialect}, ${stream ? 'streamed' : 'whole'})`,
      )
      return stack.recorded(id)
    }),
  )
  return { report: stack.report, sessions: await Promise.all(sessions) }
}
