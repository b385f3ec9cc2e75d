import { resolve } from 'node:path'
import { textOf, type AssistantMessage, type Message } from '../../model/message.ts'
import type { SessionRecord } from '../../model/session.ts'
import { recordedLogprobMode } from '../../model/steering.ts'
import { toCallSampling, type TurnSampling } from '../../model/turn-sampling.ts'
import type { Choice, Turn } from '../../model/turn.ts'
import type { Tokenizer } from '@polar-rl/tiny-engine'
import { loadTinyEngine } from '../../compose/tiny-engine.ts'
import { createCallLogReader } from '../../store/call-log/reader.ts'
import { toWireGrammar, toWireNames, toWireSampling } from '../../trajectory/sampling-fields.ts'
import { numberOrNull } from '../../trajectory/to-trace.ts'
import { defineCommand, EXIT, option, toggle, usageError, type ExitCode } from '../command.ts'
import { readRequest } from '../../compose/read-request.ts'
import { FROM_FLAG, resolveSession } from '../input/resolve-session.ts'
import { formatCallTable, toSummary } from '../views/session-view.ts'
import { isTiny } from '../../compose/token-decoder.ts'
import { print, printJson } from '../views/print.ts'
import { toHangingText, toVisibleLine } from '../../lib/visible-text.ts'

export const command = defineCommand({
  name: 'show',
  description: 'Show a recorded session.',
  subject: { name: 'session', description: 'Session id, folder of a session, or "last"', default: 'last' },
  flags: {
    from: FROM_FLAG,
    call: option('N', 'Only this call, counted from 1'),
    full: toggle('Print long messages in full'),
    tokens: toggle('Print sampled tokens with their ids and log probabilities'),
    salvage: toggle('Read the intact part of a damaged log'),
    json: toggle('Print everything as JSON; with --tokens including token ids'),
  },
  examples: ['polar show last', 'polar show last --call 1 --tokens', 'polar show last --json | jq .totals'],
  async run({ subject, flags }): Promise<ExitCode> {
    const { dir, id } = await resolveSession(subject, resolve(flags.from))
    const session = await createCallLogReader({ dir }).load(id, { salvage: flags.salvage })
    const turns = selectTurns(session, flags.call)
    if (flags.json) printJson(toJson(session, turns, flags.tokens), 2)
    else print(await formatSession(session, turns, { full: flags.full, tokens: flags.tokens }))
    return EXIT.done
  },
})

function selectTurns(session: SessionRecord, call: string | undefined): Turn[] {
  if (call === undefined) return session.turns
  const turn = session.turns[Number(call) - 1]
  if (turn === undefined)
    throw usageError('show', `call ${call} does not exist; the session has ${session.turns.length} calls`)
  return [turn]
}

// --- JSON -------------------------------------------------------------------------------------------------------------

function toJson(session: SessionRecord, turns: readonly Turn[], tokens: boolean): unknown {
  const summary = toSummary({ ...session, turns: [...turns] })
  return {
    ...summary,
    origin: session.origin,
    calls: summary.calls.map((row, i) => ({ ...row, ...toCallJson(turns[i] as Turn, tokens) })),
  }
}

function toCallJson(turn: Turn, tokens: boolean): Record<string, unknown> {
  return {
    request: parseRequest(turn),
    forced: turn.forced,
    steered_by: turn.steeredBy ?? [],
    dropped_fields: turn.droppedFields ?? [],
    sampling: turn.sampling === undefined ? null : toSamplingJson(turn.sampling),
    logprobs_of: recordedLogprobMode(turn) ?? null,
    failure: turn.failure ?? null,
    grade_reasons: turn.response?.gradeReasons ?? [],
    usage: turn.response?.usage ?? null,
    ...(tokens && turn.response ? { prompt_token_ids: Array.from(turn.response.promptIds) } : {}),
    choices: turn.response?.choices.map((choice) => ({
      index: choice.index,
      finish_reason: choice.finishReason,
      stop_reason: choice.stopReason ?? null,
      message: choice.message,
      weight_spans: choice.weightSpans ?? [],
      ...(tokens ? { token_ids: Array.from(choice.ids), logprobs: Array.from(choice.logprobs, numberOrNull) } : {}),
    })),
  }
}

function toSamplingJson(sampling: TurnSampling): Record<string, unknown> {
  const inForce = toCallSampling(sampling)
  return {
    asked: toWireSampling(sampling.asked),
    sent: toWireSampling(sampling.sent),
    engine_defaults: toWireSampling(sampling.defaults),
    assumed: toWireNames(inForce.assumed),
    unknown: toWireNames(inForce.hidden ?? []),
    in_force: toWireSampling(inForce),
    distribution_cut: inForce.isCut,
    grammar: sampling.grammar === undefined ? null : toWireGrammar(sampling.grammar),
  }
}

function parseRequest(turn: Turn): unknown {
  return JSON.parse(turn.request)
}

// --- text -------------------------------------------------------------------------------------------------------------

export interface ViewOptions {
  full: boolean
  tokens: boolean
}

export async function formatSession(
  session: SessionRecord,
  turns: readonly Turn[],
  options: ViewOptions,
): Promise<string> {
  const tokenizer = options.tokens && isTiny(session) ? await loadTinyTokenizer() : undefined
  const head = [
    `Session ${session.id}, ${new Date(session.createdAt).toISOString()}, ${session.complete ? 'complete' : 'INCOMPLETE'}`,
    ...session.incompleteReasons.map((reason) => `  ${toVisibleLine(reason)}`),
    '',
  ]
  let seen = 0
  const calls = turns.flatMap((turn) => {
    const lines = formatTurn(turn, seen, options, tokenizer)
    seen = messagesOf(turn).length
    return lines
  })
  return `${[...head, ...calls].join('\n')}\n${formatCallTable({ ...session, turns: [...turns] })}`
}

async function loadTinyTokenizer(): Promise<Tokenizer> {
  const { embeddedModelFolder, loadTokenizer } = await loadTinyEngine()
  return loadTokenizer(embeddedModelFolder())
}

function formatTurn(turn: Turn, seen: number, options: ViewOptions, tokenizer: Tokenizer | undefined): string[] {
  const messages = messagesOf(turn)
  // A history grows at its end, so only the new messages of a call are printed.
  const isContinuation = seen > 0 && messages.length > seen
  const shown = isContinuation ? messages.slice(seen) : messages
  const title = `── call ${turn.index + 1} ── ${toVisibleLine(turn.model)}${turn.stream ? ', streamed' : ''}`
  return [
    title.padEnd(80, ' ─').trimEnd(),
    ...(isContinuation ? [`   (${seen} earlier messages)`] : []),
    ...shown.map((message) => indent(message.role, describe(message), options)),
    ...(turn.response?.choices ?? []).flatMap((choice) => [
      indent('answer', describe(choice.message), options),
      ...(options.tokens ? formatTokens(choice, tokenizer) : []),
    ]),
    ...(turn.failure ? [indent('failed', `${turn.failure.code}: ${turn.failure.message}`, options)] : []),
    ...(turn.response?.gradeReasons ?? []).map((reason) => indent('grade', reason, options)),
    ...(turn.steeredBy ?? []).map((steering) => indent('steered', steering, options)),
    '',
  ]
}

function messagesOf(turn: Turn): Message[] {
  return readRequest(turn)?.messages ?? []
}

function describe(message: Message | AssistantMessage): string {
  const parts = [textOf(message), ...message.content.flatMap((part) => (part.type === 'image' ? ['[image]'] : []))]
  if (message.role === 'assistant') {
    if (message.reasoning) parts.unshift(`[thinking] ${message.reasoning}`)
    parts.push(...message.toolCalls.map((call) => `[call ${call.name}] ${call.arguments}`))
  }
  return parts.filter((part) => part !== '').join('\n')
}

const LONGEST = 400

function indent(label: string, text: string, options: ViewOptions): string {
  const cut = text.length > LONGEST && !options.full
  const shown = cut ? `${text.slice(0, LONGEST)} … (${text.length} characters; --full shows all)` : text
  return `${label.padStart(9)}  ${toHangingText(shown, 11)}`
}

function formatTokens(choice: Choice, tokenizer: Tokenizer | undefined): string[] {
  const entries = Array.from(choice.ids, (id, i) => {
    const logprob = choice.logprobs[i] ?? Number.NaN
    const text = tokenizer === undefined ? '' : ` ${JSON.stringify(tokenizer.tokenText(id))}`
    return `${id}${text} ${Number.isNaN(logprob) ? '-' : logprob.toFixed(3)}`
  })
  return [`   tokens  ${entries.join('  ')}`]
}
