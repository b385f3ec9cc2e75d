import type { SessionStore } from '../store/store.ts'
import type { SessionProgress } from './node.ts'

/** A store that counts, for each session that is open, what has been written to its log. */
export interface CountingStore extends SessionStore {
  /** Undefined for a session that is not open. */
  progressOf(sessionId: string): SessionProgress | undefined
}

export function countingStore(store: SessionStore): CountingStore {
  const open = new Map<string, SessionProgress>()
  return {
    async open(session) {
      const log = await store.open(session)
      const progress = { calls: 0, tokens: 0 }
      open.set(session.id, progress)
      return {
        sessionId: log.sessionId,
        get broken() {
          return log.broken
        },
        get turns() {
          return log.turns
        },
        appendIntent: (intent) => log.appendIntent(intent),
        appendEnd: (end) => {
          progress.calls += 1
          for (const { ids } of end.response?.choices ?? []) progress.tokens += ids.length
          return log.appendEnd(end)
        },
        appendDelivery: (turnId, delivery) => log.appendDelivery(turnId, delivery),
        close: async () => {
          if (open.get(session.id) === progress) open.delete(session.id)
          await log.close()
        },
      }
    },
    progressOf: (sessionId) => open.get(sessionId),
    [Symbol.asyncDispose]: () => store[Symbol.asyncDispose](),
  }
}
