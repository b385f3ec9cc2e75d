import { expect, test } from 'vitest'
import { bareContext, type Route } from '../dialects/dialect.ts'
import { anthropicMessages } from '../dialects/anthropic-messages.ts'
import { openaiChat } from '../dialects/openai-chat.ts'
import { openaiFields } from '../upstreams/wire/chat-fields.ts'
import { renderChatBody } from '../upstreams/wire/chat-request.ts'
import { applyQuirks } from './index.ts'

/** A request of Claude Code 2.1, as parsed. */
function claudeRequest(billing: string): unknown {
  return {
    model: 'm',
    max_tokens: 100,
    system: [
      { type: 'text', text: `x-anthropic-billing-header: cc_version=2.1.325.${billing}; cc_entrypoint=sdk-cli;` },
      { type: 'text', text: 'You help with code.', cache_control: { type: 'ephemeral' } },
    ],
    messages: [{ role: 'user', content: 'x-anthropic-billing-header: is what?' }],
  }
}

function parse(value: unknown): ReturnType<typeof anthropicMessages.parseRequest> {
  return anthropicMessages.parseRequest(
    { text: JSON.stringify(value), value },
    bareContext(anthropicMessages.routes[0] as Route),
  )
}

test('two conversations that differ in the billing line only give the engine the same prompt', () => {
  const [one, other] = ['f00', 'ba7'].map((hash) => applyQuirks(parse(claudeRequest(hash))))
  expect(one?.applied).toEqual(['claude-billing-line'])
  expect(renderChatBody(one!.request, {}, openaiFields).text).toBe(
    renderChatBody(other!.request, {}, openaiFields).text,
  )
  expect(renderChatBody(one!.request, {}, openaiFields).text).not.toContain('cc_version')
  // Only the line of the harness at the start of a system text: user messages may contain the same text.
  expect(renderChatBody(one!.request, {}, openaiFields).text).toContain('x-anthropic-billing-header: is what?')
})

test('a request without the billing line is not changed', () => {
  const value = { model: 'm', messages: [{ role: 'system', content: 'You help.' }] }
  const request = openaiChat.parseRequest(
    { text: JSON.stringify(value), value },
    bareContext(openaiChat.routes[0] as Route),
  )
  expect(applyQuirks(request)).toEqual({ request, applied: [] })
  expect(applyQuirks(request).request).toBe(request)
})
