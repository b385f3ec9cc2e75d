import { textOf, type AssistantMessage, type Message } from '../../../model/message.ts'
import { toSortedJson } from './histories.ts'

/** One difference between a message of a history and the sampled answer. */
export interface Difference {
  /**
   * `dropped`: the message is not an assistant message. `trimmed`: white space around the text. `reprinted`: tool arguments
   * with equal JSON but other formatting. `reasoning-missing`: the harness omitted the reasoning. `changed`: any other change.
   */
  kind: 'dropped' | 'trimmed' | 'reprinted' | 'reasoning-missing' | 'changed'
  /** Description without the name of the message. */
  what: string
}

/** Compares a message with the sampled answer. Empty if they are identical. */
export function differencesOf(message: Message | undefined, answer: AssistantMessage): Difference[] {
  if (message?.role !== 'assistant') {
    const what = isEmpty(answer) ? 'the empty answer was left out' : 'the answer was left out'
    return [{ kind: 'dropped', what: message === undefined ? what : `${what}, a ${message.role} message follows` }]
  }
  return [...textDifferences(message, answer), ...callDifferences(message, answer), ...reasoningOf(message, answer)]
}

/** Whether a message repeats the answer, apart from formatting, trimming and omitted reasoning. */
export function isEcho(message: Message | undefined, answer: AssistantMessage): boolean {
  if (message?.role !== 'assistant') return false
  return differencesOf(message, answer).every(({ kind }) => kind !== 'changed')
}

/** Whether a message contains a part of the answer: its text or one of its tool calls. */
export function resembles(message: Message | undefined, answer: AssistantMessage): boolean {
  if (message?.role !== 'assistant') return false
  if (isEcho(message, answer)) return true
  const [came, given] = [textOf(message).trim(), textOf(answer).trim()]
  if (came !== '' && (given.startsWith(came) || came.startsWith(given)) && given !== '') return true
  return message.toolCalls.some(({ id }) => id !== '' && answer.toolCalls.some((call) => call.id === id))
}

export function isEmpty(answer: AssistantMessage): boolean {
  return answer.toolCalls.length === 0 && textOf(answer).trim() === ''
}

function textDifferences(message: AssistantMessage, answer: AssistantMessage): Difference[] {
  const [came, given] = [textOf(message), textOf(answer)]
  if (came === given || (came.trim() === '' && given.trim() === '')) return []
  return came.trim() === given.trim()
    ? [{ kind: 'trimmed', what: 'white space around the text was changed' }]
    : [{ kind: 'changed', what: `the text was ${change(given, came)}` }]
}

function callDifferences(message: AssistantMessage, answer: AssistantMessage): Difference[] {
  const [came, given] = [message.toolCalls, answer.toolCalls]
  if (came.length !== given.length) {
    return [{ kind: 'changed', what: `${given.length} tool calls were sampled, ${came.length} came back` }]
  }
  return given.flatMap((call, i): Difference[] => {
    const echo = came[i] ?? call
    if (echo.name !== call.name) return [{ kind: 'changed', what: `the call of ${call.name} became ${echo.name}` }]
    if (echo.arguments === call.arguments) return []
    const isSame = toSortedJson(echo.arguments) === toSortedJson(call.arguments)
    return isSame
      ? [{ kind: 'reprinted', what: `the arguments of ${call.name} came back re-printed` }]
      : [{ kind: 'changed', what: `the arguments of ${call.name} were ${change(call.arguments, echo.arguments)}` }]
  })
}

function reasoningOf({ reasoning: came }: AssistantMessage, { reasoning: given }: AssistantMessage): Difference[] {
  if (came?.trim() === given?.trim() || (!given && !came)) return []
  if (!came) return [{ kind: 'reasoning-missing', what: 'the harness did not send the reasoning back' }]
  return [{ kind: 'changed', what: given ? 'the reasoning came back changed' : 'reasoning was added' }]
}

/** Describes how a text was changed. */
export function change(before: string, after: string): string {
  if (after.trim() === '') return 'left out'
  if (before.startsWith(after) || after.length < before.length / 2) {
    return `shortened from ${before.length} to ${after.length} characters`
  }
  return after.startsWith(before) ? 'added to' : 'changed'
}
