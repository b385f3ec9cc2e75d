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

/** A quirk as data, for the config file. */
export const QuirkRule = z.strictObject({
  name: z
    .string()
    .regex(/^[a-z0-9][a-z0-9-]{0,63}$/, 'must be lower-case letters, digits and dashes')
    .describe('Stored with every call that the rule changed'),
  evidence: z.string().default('').describe('What the harness does, and what it costs'),
  where: z
    .strictObject({
      role: z
        .enum(['system', 'user', 'tool', 'any'])
        .default('any')
        .describe('Messages to change; system includes developer. Assistant messages are never changed'),
      dialect: z.string().optional().describe('Only requests of this API, as in anthropic-messages'),
    })
    .prefault({}),
  find: Pattern.describe('Regular expression without groups and with bounded repetitions; each match is replaced'),
  replace: z.string().default('').describe('Literal replacement text'),
})
export type QuirkRule = z.infer<typeof QuirkRule>

/** The pattern is applied to each text part separately, so `^` and `$` match the ends of a part. */
export function toQuirk(rule: QuirkRule): Quirk {
  const replaceAll = compilePattern(rule.find)
  const applyTo = (message: Message): Message => {
    if (!appliesTo(rule, message)) return message
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

function appliesTo({ where }: QuirkRule, { role }: Message): boolean {
  if (role === 'assistant') return false
  return where.role === 'any' || where.role === (role === 'developer' ? 'system' : role)
}

function replaceIn(part: ContentPart, change: (text: string) => string): ContentPart {
  if (part.type !== 'text') return part
  const text = change(part.text)
  return text === part.text ? part : { ...part, text }
}
