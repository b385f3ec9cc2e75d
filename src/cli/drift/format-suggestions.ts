import { toVisibleLine } from '../../lib/visible-text.ts'
import { formatTable } from '../views/table.ts'
import type { Gain, Suggestion, SuggestResult } from './suggest-rules.ts'

/** Formats the suggested rules and their effect on the recorded session. */
export function formatSuggestions(
  { suggestions, refused, proof }: SuggestResult,
  { sessionId, to }: { sessionId: string; to: string | undefined },
): string {
  const rejected = refused.map(({ rule, why }) => toVisibleLine(`Not suggested: ${rule.name} (${rule.find}): ${why}.`))
  if (suggestions.length === 0) {
    return [
      ...rejected,
      `No rule found: no text of session ${sessionId} changes only in times, ids or counters.`,
      '',
    ].join('\n')
  }
  return [
    ...suggestions.flatMap(describe),
    ...rejected,
    `Effect of the ${suggestions.length === 1 ? 'rule' : 'rules'} on the requests of session ${sessionId}:`,
    formatTable([
      ['', 'without', 'with'],
      row('histories that extend an earlier one', proof.messages),
      ...(proof.tokens === undefined ? [] : [row('diverging prompts that continue token by token', proof.tokens)]),
    ]),
    ...(to === undefined ? ['The rule file:', ''] : usage(to)),
  ].join('\n')
}

function describe({ rule, pieces }: Suggestion): string[] {
  const [first] = pieces
  return [
    `Rule ${rule.name}, for ${rule.where.role} messages`,
    `  seen     ${first?.before} → ${first?.now}${pieces.length > 1 ? `, and ${pieces.length - 1} more` : ''}`,
    `  find     ${rule.find}`,
    `  replace  ${JSON.stringify(rule.replace)}`,
    `           The model always reads ${first?.before}; edit "replace" to change this text.`,
    '',
  ].map(toVisibleLine)
}

function row(name: string, { of, before, after }: Gain): string[] {
  return [name, `${before} of ${of}`, `${after} of ${of}`]
}

function usage(file: string): string[] {
  return [`Written to ${file}. Use it:`, `  polar record --quirks ${file} …`, `  polar gateway --quirks ${file} …`, '']
}
