import { writeFile } from 'node:fs/promises'
import { resolve } from 'node:path'
import { stringify } from 'yaml'
import type { QuirkRule } from '../../gateway/quirks/rule.ts'
import { toVisibleJson, toVisibleText } from '../../lib/visible-text.ts'
import { RolloutError } from '../../model/failure.ts'
import type { SessionRecord } from '../../model/session.ts'
import { createCallLogReader } from '../../store/call-log/reader.ts'
import { buildGraph } from '../../trajectory/graph/build-graph.ts'
import type { CallGraph } from '../../trajectory/graph/call-graph.ts'
import type { TokenDecoder } from '../../trajectory/attribute-context.ts'
import { defineCommand, EXIT, option, parseNumber, toggle, type ExitCode } from '../command.ts'
import { adviceFor } from '../drift/advice.ts'
import { callNumber, findBreaks, summariseDrift, type Break } from '../drift/find-breaks.ts'
import { formatBreak, formatSummary, shownIds, sidesOf } from '../drift/format-break.ts'
import { formatSuggestions } from '../drift/format-suggestions.ts'
import { suggestRules, type SuggestResult } from '../drift/suggest-rules.ts'
import { loadTinyPrompt } from '../drift/tiny-prompt.ts'
import { createRequestReader } from '../../compose/read-request.ts'
import { ENGINE_FLAGS, ENGINE_KEY_FLAG, toEngineChoice } from '../input/engine-flags.ts'
import { FROM_FLAG, resolveSession, TOKENIZER_FLAG } from '../input/resolve-session.ts'
import { isTiny, openTokenSource } from '../../compose/token-decoder.ts'
import { print, printError, printJson } from '../views/print.ts'

export const command = defineCommand({
  name: 'drift',
  description:
    'Explain where a prompt does not continue an earlier call token by token: the token, the reason, and what to change.',
  subject: { name: 'session', description: 'Session id, folder of a session, or "last"', default: 'last' },
  flags: {
    from: FROM_FLAG,
    call: option('N', 'Only this call, counted from 1'),
    tokenizer: TOKENIZER_FLAG,
    'engine-url': { ...ENGINE_FLAGS['engine-url'], description: 'Engine that returns the text of tokens' },
    'engine-key': ENGINE_KEY_FLAG,
    suggest: toggle('Find bytes that change without a change of meaning, and write quirk rules for them'),
    to: option('FILE', 'With --suggest: file for the rules (default: standard output)'),
    salvage: toggle('Read the intact part of a damaged log'),
    fail: toggle('Exit with 1 if any prompt diverges'),
    json: toggle('Print everything as JSON'),
  },
  examples: ['polar drift last', 'polar drift last --call 3', 'polar drift last --suggest --to quirks.yaml'],
  async run({ subject, flags }): Promise<ExitCode> {
    const { dir, id } = await resolveSession(subject, resolve(flags.from))
    const session = await createCallLogReader({ dir }).load(id, { salvage: flags.salvage })
    const graph = buildGraph(session, createRequestReader(session))
    if (flags.suggest) return suggest(session, graph, flags)
    const breaks = selectBreaks(findBreaks(graph, session.origin), session, flags.call)
    const source = await openTokenSource(session, {
      tokenizer: flags.tokenizer,
      engine: toEngineChoice('drift', flags),
    })
    const decoder = await source?.load(breaks.flatMap(shownIds))
    if (flags.json) printJson(toBreaksJson(session, graph, breaks, decoder), 2)
    else print(formatBreaks(graph, breaks, decoder))
    return flags.fail && breaks.length > 0 ? EXIT.failed : EXIT.done
  },
})

function selectBreaks(breaks: readonly Break[], session: SessionRecord, call: string | undefined): Break[] {
  if (call === undefined) return [...breaks]
  const number = parseNumber('drift', 'call', call, { min: 1, max: session.turns.length })
  return breaks.filter(({ node }) => callNumber(node) === number)
}

// --- breaks -----------------------------------------------------------------------------------------------------------

function toBreaksJson(
  session: SessionRecord,
  graph: CallGraph,
  breaks: readonly Break[],
  decoder: TokenDecoder | undefined,
): unknown {
  const summary = summariseDrift(graph)
  return {
    session_id: session.id,
    calls: summary.calls,
    continuations: summary.edges,
    exact: summary.exact,
    reasons: summary.reasons,
    breaks: breaks.map((found) => ({
      call: callNumber(found.node),
      turn_id: found.node.turn.id,
      from_call: callNumber(found.from),
      from_turn_id: found.from.turn.id,
      reason: found.reason,
      detail: found.detail,
      token_index: found.at,
      ...sidesOf(found, decoder),
      advice: adviceFor(found),
    })),
  }
}

function formatBreaks(graph: CallGraph, breaks: readonly Break[], decoder: TokenDecoder | undefined): string {
  const width = process.stdout.columns ?? Number(process.env['COLUMNS'] ?? 100)
  const hint =
    breaks.length > 0 && decoder === undefined
      ? 'Tokens are shown by their ids: add --tokenizer DIR or --engine-url URL to see their text.\n'
      : ''
  const advised = new Map<string, number>()
  const texts = breaks.map((found) => {
    const advice = adviceFor(found)
    const text = formatBreak(found, decoder, { width, advised: advised.get(advice) })
    if (!advised.has(advice)) advised.set(advice, callNumber(found.node))
    return `${text}\n`
  })
  return [...texts, hint, formatSummary(summariseDrift(graph))].join('')
}

// --- rules ------------------------------------------------------------------------------------------------------------

async function suggest(
  session: SessionRecord,
  graph: CallGraph,
  flags: { to: string | undefined; json: boolean },
): Promise<ExitCode> {
  const render = isTiny(session) ? await loadTinyPrompt() : undefined
  const result = suggestRules(graph, createRequestReader(session), render)
  const rules = result.suggestions.map(({ rule }) => rule)
  const file = renderRules(rules)
  if (rules.length > 0 && flags.to !== undefined) await writeNew(flags.to, file)
  if (flags.json) printJson(toJson(session, result), 2)
  else {
    printError(formatSuggestions(result, { sessionId: session.id, to: flags.to }))
    if (rules.length > 0 && flags.to === undefined) print(file)
  }
  const isBroken = findBreaks(graph).length > 0
  return isBroken && rules.length === 0 ? EXIT.failed : EXIT.done
}

/** Renders YAML; or JSON, which is also YAML, if a rule has characters that a terminal would not show. */
function renderRules(rules: readonly QuirkRule[]): string {
  const yaml = stringify(rules, { lineWidth: 0 })
  return toVisibleText(yaml) === yaml ? yaml : `${toVisibleJson(JSON.stringify(rules, null, 2))}\n`
}

function toJson(session: SessionRecord, { suggestions, refused, proof }: SuggestResult): unknown {
  return { session_id: session.id, rules: suggestions.map(({ rule }) => rule), refused, proof }
}

/** Does not overwrite a file, whose rules may have been edited. */
async function writeNew(path: string, text: string): Promise<void> {
  try {
    await writeFile(path, text, { flag: 'wx' })
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException
    const problem = code === 'EEXIST' ? 'the file already exists' : code
    throw new RolloutError('config.invalid', `The rules cannot be written to ${path}: ${problem}.`, { cause: error })
  }
}
