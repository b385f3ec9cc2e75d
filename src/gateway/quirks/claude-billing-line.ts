import { textOf } from '../../model/message.ts'
import type { Quirk } from './quirk.ts'

const BILLING_LINE = /^x-anthropic-billing-header:[^\n]*\n?/

export const claudeBillingLine: Quirk = {
  name: 'claude-billing-line',
  evidence:
    'Claude Code puts a line "x-anthropic-billing-header: cc_version=…" with a hash of the first prompt at the very start of ' +
    'its system prompt. Every conversation then begins differently, and no two share a prefix in the engine’s cache.',
  apply(request) {
    const messages = request.messages.flatMap((message) => {
      if (message.role !== 'system' || !BILLING_LINE.test(textOf(message))) return [message]
      const [first, ...rest] = message.content
      if (first?.type !== 'text') return [message]
      const text = first.text.replace(BILLING_LINE, '')
      const content = text === '' ? rest : [{ ...first, text }, ...rest]
      return content.length === 0 ? [] : [{ ...message, content }]
    })
    const isChanged = messages.length !== request.messages.length || messages.some((m, i) => m !== request.messages[i])
    return isChanged ? { ...request, messages } : request
  },
}
