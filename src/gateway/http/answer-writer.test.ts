import { expect, test, vi } from 'vitest'
import type { StreamEvent } from '../../model/stream-event.ts'
import { createAnswerWriter, type Caller } from './answer-writer.ts'
import { bareContext, type Route } from '../dialects/dialect.ts'
import { googleGenerate } from '../dialects/google-generate.ts'

function recorder(): { caller: Caller; written: () => string[] } {
  const written: string[] = []
  const caller: Caller = {
    signal: new AbortController().signal,
    startStream: () => written.push('start'),
    write: (text) => void written.push(text),
    async end(text) {
      written.push(text ?? '', 'end')
      return true
    },
    sendJson: async () => true,
    cut: () => {},
  }
  return { caller, written: () => written }
}

test('finish() ends a stream whose headers were not sent before, and stops its timers', async () => {
  vi.useFakeTimers()
  try {
    const route = googleGenerate.routes.find(({ path }) => path.endsWith(':streamGenerateContent')) as Route
    const context = { ...bareContext(route), wildcards: ['m'], query: new URLSearchParams('alt=sse') }
    const value = { contents: [{ role: 'user', parts: [{ text: 'hi' }] }] }
    const request = googleGenerate.parseRequest({ text: JSON.stringify(value), value }, context)
    const { caller, written } = recorder()
    const writer = createAnswerWriter({ dialect: googleGenerate, context, request, caller })
    const events: StreamEvent[] = [{ type: 'choice-delta', choice: 0, text: 'hello', finishReason: 'stop' }]
    await writer.deliver(events)
    expect(await writer.finish({})).toBe(true)
    expect(vi.getTimerCount()).toBe(0)
    expect(written().at(0)).toBe('start')
    expect(written().at(-1)).toBe('end')
  } finally {
    vi.useRealTimers()
  }
})
