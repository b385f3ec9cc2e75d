import { textOf, type AssistantMessage } from '../../../src/model/message.ts'
import type { SessionRecord } from '../../../src/model/session.ts'
import type { Choice, FinishReason, Turn, WeightSpan } from '../../../src/model/turn.ts'
import { orderRecords, corruptRecords } from './records.ts'
import type { AnswerScript, Attempt, Flaws, Op, SessionScript } from './script.ts'
import { parseAnswer, thoughtToText, type WireMessage, type World } from './world.ts'

/** The same records in two orders of arrival. */
export interface RandomSession {
  session: SessionRecord
  reordered: SessionRecord
}

/** State of one conversation in its harness. */
interface Agent {
  hasTools: boolean
  history: readonly WireMessage[]
  /** The answer that the history continues, in the gateway's memory; absent if it was evicted. */
  last?: { promptIds: Int32Array; ids: Int32Array; messages: number }
  /** End of its last call. */
  readyAt: number
}

/** A request as the harness sends it and as the engine reads it. */
interface Sent {
  agent: Agent
  promptIds: Int32Array
  op: Op
}

/** Simulates a scripted harness, a gateway that records it, and an engine with scripted answers. */
export function simulate(script: SessionScript, world: World): RandomSession {
  const records = new Simulation(script, world).run()
  const turns = corruptRecords(records, script.records)
  const sessionOf = (order: readonly number[]): SessionRecord => ({
    id: 'ses_random',
    createdAt: 0,
    origin: {},
    turns: orderRecords(turns, order),
    complete: true,
    incompleteReasons: [],
  })
  return { session: sessionOf(script.records.order), reordered: sessionOf(script.records.otherOrder) }
}

class Simulation {
  readonly #script: SessionScript
  readonly #world: World
  readonly #turns: Turn[] = []
  readonly #agents: Agent[] = []
  /** All earlier states of conversations, as starts of branches. */
  readonly #snapshots: Agent[] = []
  #clock = 0
  #version = 1
  #sampled = 0

  constructor(script: SessionScript, world: World) {
    this.#script = script
    this.#world = world
  }

  run(): Turn[] {
    this.#agents.push(this.#newAgent(0, true))
    for (const op of this.#script.ops) this.#perform(op)
    return this.#turns
  }

  #perform(op: Op): void {
    const at = op.agent % this.#agents.length
    const agent = this.#agents[at] as Agent
    this.#clock += op.wait
    switch (op.kind) {
      case 'go-on':
        this.#agents[at] = this.#call(this.#hear(agent, op), op)
        return
      case 'branch': {
        const from = this.#snapshots[op.agent % Math.max(1, this.#snapshots.length)] ?? agent
        this.#agents.push(this.#call(this.#hear(from, op), op))
        return
      }
      case 'compact': {
        const { history, hasTools, readyAt } = this.#call(this.#hear(agent, op), op)
        const said = history.at(-1)?.['content']
        const summary = { role: 'user', content: typeof said === 'string' ? said : this.#word(op.text) }
        this.#agents[at] = { history: [...history.slice(0, 1), summary], hasTools, readyAt }
        return
      }
      case 'spawn':
        this.#agents.push(this.#call(this.#hear(this.#newAgent(op.text, op.changesTools), op), op))
        return
      case 'side-call':
        this.#call(this.#hear(this.#newAgent(op.text + 1, false), op), op)
        return
      case 'resume': {
        const open = this.#agents.findIndex((candidate) => this.#canResume(candidate))
        if (open === -1) this.#agents[at] = this.#call(this.#hear(agent, op), op)
        else this.#agents[open] = this.#call(this.#agents[open] as Agent, op)
        return
      }
      case 'silent':
        this.#record({ agent: this.#hear(agent, op), promptIds: new Int32Array(), op }, { outcome: 'failed' })
        return
    }
  }

  // --- the harness ----------------------------------------------------------------------------------------------------

  #newAgent(text: number, hasTools: boolean): Agent {
    return { hasTools, history: [{ role: 'system', content: this.#word(text) }], readyAt: this.#clock }
  }

  #hear(agent: Agent, { text, changesTools }: Op): Agent {
    const content = this.#word(text)
    const asked = agent.history.at(-1)?.['tool_calls'] as { id: string }[] | undefined
    const message =
      asked?.[0] === undefined ? { role: 'user', content } : { role: 'tool', tool_call_id: asked[0].id, content }
    return {
      ...agent,
      history: [...agent.history, message],
      hasTools: agent.hasTools !== changesTools,
    }
  }

  /** Sends a request, with retries if scripted, and appends the answer. */
  #call(agent: Agent, op: Op): Agent {
    const promptIds = this.#promptOf(agent, op)
    const sent = { agent, promptIds, op }
    let readyAt = agent.readyAt
    for (const attempt of op.attempts) {
      readyAt = this.#record({ ...sent, agent: { ...agent, readyAt } }, attempt)
    }
    readyAt = this.#record({ ...sent, agent: { ...agent, readyAt } })
    const choices = this.#turns.at(-1)?.response?.choices ?? []
    const choice = choices[op.pick % choices.length] as Choice
    const next = { ...agent, ...this.#takeIn(agent, choice, promptIds), readyAt }
    this.#snapshots.push(next)
    return next
  }

  #takeIn(agent: Agent, choice: Choice, promptIds: Int32Array): Pick<Agent, 'history' | 'last'> {
    const isResumed = agent.history.at(-1)?.role === 'assistant'
    // For the harness, a resumed answer and its first part are one message.
    const text = this.#world.decode(isResumed && agent.last ? concat(agent.last.ids, choice.ids) : choice.ids)
    const message = isResumed
      ? parseAnswer(this.#world, text.replace(this.#world.end.text, ''), `call_${this.#sampled}`)
      : choice.message
    const before = isResumed ? agent.history.slice(0, -1) : agent.history
    const history = [...before, this.#echo(message)]
    if (choice.ids.length === 0) return { history, last: undefined }
    return { history, last: { promptIds, ids: choice.ids, messages: history.length } }
  }

  #echo(message: AssistantMessage): WireMessage {
    const { echo } = this.#script
    const wire = toWire(message, echo === 'arguments-reprinted' ? reprinted : (text) => text)
    if (echo !== 'reasoning-stripped') return wire
    const { reasoning_content: _, ...rest } = wire
    return rest
  }

  // --- the gateway ----------------------------------------------------------------------------------------------------

  #canResume({ last, history }: Agent): boolean {
    const isOpen = last !== undefined && last.ids.at(-1) !== this.#world.end.id
    return this.#script.history === 'literal' && isOpen && last.messages === history.length
  }

  /** Returns the earlier prompt and answer token by token followed by the new messages, or the rendered history. */
  #promptOf({ history, hasTools, last }: Agent, { isRendered }: Op): Int32Array {
    const world = this.#world
    if (last !== undefined && last.messages === history.length) return concat(last.promptIds, last.ids)
    const isLiteral = last !== undefined && !isRendered && this.#script.history === 'literal'
    if (!isLiteral) return world.encode(world.render({ messages: history, hasTools, isOpen: true }))
    // Both templates render each message separately, so messages before the answer need not be rendered.
    const [system, answer, ...added] = [...history.slice(0, 1), ...history.slice(last.messages - 1)] as WireMessage[]
    const known = [system, answer] as WireMessage[]
    const start = world.render({ messages: known, hasTools, isOpen: false }).length - world.end.closing.length
    const bridge = world.render({ messages: [...known, ...added], hasTools, isOpen: true }).slice(start)
    const isEnded = last.ids.at(-1) === world.end.id
    return concat(last.promptIds, last.ids, world.encode(isEnded ? bridge.slice(world.end.text.length) : bridge))
  }

  /** Returns the end time of the call. Without an attempt, it is the call that the harness continues. */
  #record({ agent, promptIds, op }: Sent, attempt?: Pick<Attempt, 'outcome'> & Partial<Attempt>): number {
    const index = this.#turns.length
    const outcome = attempt?.outcome
    this.#clock = Math.max(this.#clock, agent.readyAt)
    const endedAt = this.#clock + op.takes
    const turn: Turn = {
      id: `turn_${(index * 37) % 101}`,
      sessionId: 'ses_random',
      index,
      dialect: 'openai-chat',
      startedAt: this.#clock,
      ...(outcome === 'unfinished' ? {} : { endedAt }),
      model: 'm',
      stream: false,
      request: JSON.stringify({
        model: 'm',
        messages: agent.history,
        ...(agent.hasTools ? { tools: this.#world.tools } : {}),
      }),
      headers: {},
      ...(attempt?.isNamed === true && index > 0 ? { retryOf: this.#turns[index - 1]?.id } : {}),
      forced: {},
      delivery: deliveryOf(outcome, op.flaws),
      ...(op.flaws.steering === 'unnamed' || op.flaws.steering.length === 0 ? {} : { steeredBy: op.flaws.steering }),
      ...(outcome === 'partial' || outcome === 'failed' ? { failure: FAILURE } : {}),
    }
    const response = outcome === 'failed' ? undefined : this.#answer({ promptIds, op }, attempt)
    this.#turns.push(response === undefined ? turn : { ...turn, response })
    return endedAt
  }

  // --- the engine -----------------------------------------------------------------------------------------------------

  #answer({ promptIds, op }: Omit<Sent, 'agent'>, attempt?: Partial<Attempt>): Turn['response'] {
    const flaws: Flaws = attempt === undefined ? op.flaws : { ...op.flaws, grade: 'exact', hasNoIds: false }
    const scripts = attempt === undefined || attempt.answer == null ? op.answers : [attempt.answer]
    if (attempt === undefined && ['new', 'change-midway', 'uncertain-midway'].includes(op.weights)) this.#version += 1
    const choices =
      attempt?.outcome === 'empty' ? [] : scripts.map((answer, index) => this.#sample(answer, index, { op, flaws }))
    const weightVersion =
      this.#script.knowsWeights && choices.length > 0
        ? (choices[0]?.weightSpans?.[0]?.version ?? `w${this.#version}`)
        : undefined
    return {
      id: 'r',
      model: 'm',
      created: 0,
      promptIds: flaws.grade === 'text-only' ? new Int32Array() : promptIds,
      choices: attempt?.outcome === 'partial' ? choices.map(cut) : choices,
      grade: flaws.grade,
      gradeReasons: flaws.grade === 'exact' ? [] : ['the script says so'],
      logprobMode: flaws.steering.length === 0 ? 'raw' : 'grammar',
      ...(weightVersion === undefined ? {} : { weightVersion }),
    }
  }

  #sample(script: AnswerScript, index: number, { op, flaws }: { op: Op; flaws: Flaws }): Choice {
    const world = this.#world
    const serial = (this.#sampled += 1)
    const spelt = this.#spell(script)
    const ids = flaws.hasNoIds || flaws.grade === 'text-only' ? new Int32Array() : spelt
    const text = world.decode(spelt.at(-1) === world.end.id ? spelt.subarray(0, -1) : spelt)
    const message = parseAnswer(world, text, `call_${serial}`)
    const logprobs = Float32Array.from(ids, (_, i) => -(((serial * 131 + i * 17) % 997) / 997))
    if (flaws.isMissingLogprob) logprobs.fill(Number.NaN, -1)
    const weightSpans = this.#weightSpans(op, ids.length)
    return {
      index,
      message,
      finishReason: finishReasonOf(script, message),
      ids,
      logprobs,
      ...(weightSpans === undefined ? {} : { weightSpans }),
    }
  }

  #spell({ reasoning, words, call, ending, keeps, splitEvery }: AnswerScript): Int32Array {
    const world = this.#world
    const text = thoughtToText(world, {
      ...(reasoning === null ? {} : { reasoning: this.#word(reasoning) }),
      text: words.map((word) => this.#word(word)).join(''),
      ...(call === null ? {} : { call: argumentsOf(JSON.stringify(this.#word(call.argument)), call.style) }),
    })
    const ids = Array.from(world.encode(text)).flatMap((id, i) =>
      splitEvery > 0 && i % splitEvery === 0 ? world.split(id) : [id],
    )
    if (ending === 'end-of-turn') return Int32Array.of(...ids, world.end.id)
    if (ending === 'stop-string' && ids.length > 0) return Int32Array.from(ids)
    return Int32Array.from(ids.slice(0, Math.max(1, keeps)))
  }

  #weightSpans({ weights }: Op, length: number): WeightSpan[] | undefined {
    if (!this.#script.knowsWeights || weights === 'new' || length < 2) return undefined
    const middle = length >> 1
    const now = `w${this.#version}`
    if (weights === 'known-midway') return [{ from: middle, version: now }]
    if (weights === 'same') return [{ from: 0, version: now }]
    const before = `w${this.#version - 1}`
    if (weights === 'uncertain-midway')
      return [
        { from: 0, version: before },
        { from: middle, version: before, newest: now },
      ]
    return [
      { from: 0, version: before },
      { from: middle, version: now },
    ]
  }

  #word(number: number): string {
    return this.#world.words[number % this.#world.words.length] ?? ''
  }
}

const FAILURE = { code: 'upstream.reset', message: 'the engine went away', status: 502 } as const

function deliveryOf(outcome: Attempt['outcome'] | undefined, flaws: Flaws): Turn['delivery'] {
  if (outcome === undefined) return flaws.delivery
  if (outcome === 'unfinished') return 'unknown'
  return outcome === 'delivered' || outcome === 'empty' ? 'delivered' : 'undelivered'
}

function finishReasonOf({ ending }: AnswerScript, { toolCalls }: AssistantMessage): FinishReason {
  if (ending === 'length' || ending === 'cut') return ending
  return toolCalls.length > 0 ? 'tool-calls' : 'stop'
}

/** The part of an answer before the engine disconnected. */
function cut(choice: Choice): Choice {
  const length = choice.ids.length >> 1
  const weightSpans = choice.weightSpans?.filter(({ from }) => from < length)
  return {
    ...choice,
    finishReason: 'cut',
    ids: choice.ids.subarray(0, length),
    logprobs: choice.logprobs.subarray(0, length),
    weightSpans: weightSpans === undefined || weightSpans.length === 0 ? undefined : weightSpans,
  }
}

function argumentsOf(value: string, style: 'spaced' | 'compact' | 'broken'): string {
  const open = style === 'compact' ? '{"x":' : '{"x": '
  return `${open}${value}${style === 'broken' ? '' : '}'}`
}

function reprinted(text: string): string {
  try {
    return JSON.stringify(JSON.parse(text))
  } catch {
    return text
  }
}

function toWire(message: AssistantMessage, print: (text: string) => string): WireMessage {
  const text = textOf(message)
  const { reasoning, toolCalls } = message
  return {
    role: 'assistant',
    content: text === '' && toolCalls.length > 0 ? null : text,
    ...(reasoning === undefined ? {} : { reasoning_content: reasoning }),
    ...(toolCalls.length === 0
      ? {}
      : {
          tool_calls: toolCalls.map(({ id, name, arguments: sampled }) => ({
            id,
            type: 'function',
            function: { name, arguments: print(sampled) },
          })),
        }),
  }
}

function concat(...arrays: readonly Int32Array[]): Int32Array {
  const all = new Int32Array(arrays.reduce((sum, { length }) => sum + length, 0))
  let at = 0
  for (const array of arrays) {
    all.set(array, at)
    at += array.length
  }
  return all
}
