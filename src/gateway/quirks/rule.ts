import * as z from 'zod'
import type { ContentPart, Message } from '../../model/message.ts'
import type { Quirk } from './quirk.ts'
import { compilePattern } from './rule-pattern.ts'

const Pattern = z.string().superRefine((source, context) => {
  try {
    compilePattern(source)
  } catch (error) {
    context.addIssue({ code: 'custom', message: `the pattern ${(error as Error).message}` })
  }
})

/** A quirk as data: what a user can write down without writing code. */
export const QuirkRule = z.strictObject({
  name: z
    .string()
    .regex(/^[a-z0-9][a-z0-9-]{0,63}$/, 'must be lower-case letters, digits and dashes')
    .describe('Noted with every call it changed'),
  evidence: z.string().default('').describe('What the harness does, and what it costs'),
  where: z
    .strictObject({
      role: z
        .enum(['system', 'user', 'tool', 'any'])
        .default('any')
        .describe('Whose texts; system includes developer. What the assistant said is never touched'),
      dialect: z.string().optional().describe('Only requests of this API, as in anthropic-messages'),
    })
    .prefault({}),
  find: Pattern.describe('Regular expression, of the kind that is fast on every text; each match is replaced'),
  replace: z.string().default('').describe('What stands there instead, literally'),
})
export type QuirkRule = z.infer<typeof QuirkRule>

/** Each text part is looked at by itself, so `^` and `$` are the ends of a part. */
export function toQuirk(rule: QuirkRule): Quirk {
  const replaceAll = compilePattern(rule.find)
  const applyTo = (message: Message): Message => {
    if (!concerns(rule, message)) return message
    const content = message.content.map((part) => replaceIn(part, (text) => replaceAll(text, rule.replace)))
    return content.every((part, i) => part === message.content[i]) ? message : { ...message, content }
  }
  return {
    name: rule.name,
    evidence: rule.evidence,
    apply(request) {
      if (rule.where.dialect !== undefined && rule.where.dialect !== request.dialect) return request
      const messages = request.messages.map(applyTo)
      return messages.every((message, i) => message === request.messages[i]) ? request : { ...request, messages }
    },
  }
}

function concerns({ where }: QuirkRule, { role }: Message): boolean {
  if (role === 'assistant') return false
  return where.role === 'any' || where.role === (role === 'developer' ? 'system' : role)
}

function replaceIn(part: ContentPart, change: (text: string) => string): ContentPart {
  if (part.type !== 'text') return part
  const text = change(part.text)
  return text === part.text ? part : { ...part, text }
}
