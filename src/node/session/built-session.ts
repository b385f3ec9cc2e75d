import type { ChatMessage } from '../../model/chat-message.ts'
import { RolloutError, toFailure, type Failure } from '../../model/failure.ts'
import type { TaskRequest } from '../../model/task.ts'
import type { TranscriptEntry } from '../../model/transcript.ts'
import type { BuildFacts, LoadedSession, RecordHead } from '../build/session-build.ts'
import type { GradedSession } from './grade-session.ts'

/** A built session; its samples are in the build process. */
export interface SessionBuild {
  loaded: LoadedSession
  facts: BuildFacts
}

/** Only evaluators that users load from modules get the turns of the record, which may be large. */
export async function toGraded({ loaded, facts }: SessionBuild, { evaluator }: TaskRequest): Promise<GradedSession> {
  const { turnCount: _, ...head } = loaded.head
  const [conversation, transcript] = [await loaded.readConversation(), await loaded.readTranscript()]
  return {
    session: evaluator?.strategy.includes('/') ? await loaded.readRecord() : { ...head, turns: [] },
    summary: facts.summary,
    // Parsed only if the evaluator reads them.
    conversation: () => JSON.parse(conversation) as ChatMessage[],
    transcript: () => JSON.parse(transcript) as TranscriptEntry[],
  }
}

/** Most harnesses do not report an MCP server that failed to start, but they then offer none of its tools. */
export function missingServers(servers: readonly string[], { offered }: BuildFacts): string[] {
  return servers
    .filter((_, i) => offered[i] === false)
    .map((name) => `No tool of the MCP server "${name}" was ever offered to the model; did it start?`)
}

export function whyIncomplete({ complete, incompleteReasons }: RecordHead): Failure | undefined {
  if (complete) return undefined
  return toFailure(new RolloutError('store.unavailable', `The record is incomplete: ${incompleteReasons.join('; ')}`))
}
