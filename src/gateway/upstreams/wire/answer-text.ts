import * as z from 'zod'
import { membersOf } from '../../../lib/json/json-edit.ts'
import { isJson, parseJsonObject } from '../../../lib/json/json-text.ts'
import type { Tool } from '../../../model/message.ts'

/**
 * How a model writes tool calls. `hermes`: `<tool_call>{"name": …, "arguments": {…}}</tool_call>`. `qwen3-coder`:
 * `<tool_call><function=NAME><parameter=KEY>…</parameter></function></tool_call>`.
 */
export const ToolFormat = z.enum(['hermes', 'qwen3-coder'])
export type ToolFormat = z.infer<typeof ToolFormat>

export interface ParsedText {
  reasoning?: string
  content: string
  toolCalls: { name: string; arguments: string }[]
}

/** Tags that the engine must not remove from the text. */
export const TEXT_TAGS = ['<think>', '</think>', '<tool_call>', '</tool_call>']

/**
 * Parses a whole sampled text, for endpoints of an engine without parsers. `tools`: the tools of the request, or undefined
 * when the model may not call tools. A text with a call that cannot be parsed is content, as with the parsers of vLLM.
 */
export function parseAnswerText(
  text: string,
  format: ToolFormat | undefined,
  tools: readonly Tool[] | undefined,
): ParsedText {
  const { reasoning, rest } = splitReasoning(text)
  const plain = { ...(reasoning === undefined ? {} : { reasoning }), content: rest, toolCalls: [] }
  const start = tools === undefined || format === undefined ? -1 : rest.indexOf('<tool_call>')
  if (start === -1) return plain
  const read = format === 'hermes' ? readHermesCall : (block: string) => readXmlCall(block, tools ?? [])
  const calls = callBlocks(rest.slice(start)).map(read)
  if (!calls.every((call) => call !== undefined)) return plain
  const content = rest.slice(0, start)
  return { ...plain, content: content.trim() === '' ? '' : content.replace(/\n$/, ''), toolCalls: calls }
}

/** Returns the format in which a chat template writes a call of `name` into a prompt; undefined for any other format. */
export function detectToolFormat(prompt: string, name: string): ToolFormat | undefined {
  const call = prompt.lastIndexOf('<tool_call>')
  if (call === -1) return undefined
  const block = prompt.slice(call + '<tool_call>'.length).trimStart()
  if (block.startsWith(`<function=${name}>`)) return 'qwen3-coder'
  return readHermesCall(block.slice(0, block.indexOf('</tool_call>')))?.name === name ? 'hermes' : undefined
}

/** A chat template may open the block of reasoning in the prompt, so that the text contains only its end. */
function splitReasoning(text: string): { reasoning?: string; rest: string } {
  const isOpened = /^\s*<think>/.test(text)
  const end = text.indexOf('</think>')
  if (!isOpened && end === -1) return { rest: text }
  const thought = text.slice(0, end === -1 ? undefined : end).replace(/^\s*<think>\n?/, '')
  const rest = end === -1 ? '' : text.slice(end + '</think>'.length).replace(/^\n{1,2}/, '')
  return { reasoning: thought.replace(/\n$/, ''), rest }
}

/** The last block may lack its end: some templates make the end of the turn the end of the call. */
function callBlocks(text: string): string[] {
  const blocks = text.split('<tool_call>').slice(1)
  return blocks.map((block) => block.split('</tool_call>')[0]!.trim())
}

/** Arguments are a substring of the text: parsing would change numbers. */
function readHermesCall(block: string): { name: string; arguments: string } | undefined {
  const call = isJson(block) ? parseJsonObject(block) : undefined
  if (typeof call?.['name'] !== 'string' || call['name'] === '') return undefined
  const member = membersOf(block).findLast(({ name }) => name === 'arguments')
  return { name: call['name'], arguments: member === undefined ? '{}' : block.slice(member.start, member.end) }
}

function readXmlCall(block: string, tools: readonly Tool[]): { name: string; arguments: string } | undefined {
  const name = /^<function=([^>\s]+)>/.exec(block)?.[1]
  if (name === undefined || !block.includes('</function>')) return undefined
  const types = propertyTypes(tools.find((tool) => tool.name === name))
  const members = [...block.matchAll(/<parameter=([^>]+)>\n?([\s\S]*?)\n?<\/parameter>/g)].map(
    ([, key = '', value = '']) => `${JSON.stringify(key)}: ${toJsonValue(value, types[key])}`,
  )
  return { name, arguments: `{${members.join(', ')}}` }
}

function propertyTypes(tool: Tool | undefined): Record<string, unknown> {
  const { properties } = (tool?.parameters ?? {}) as { properties?: Record<string, { type?: unknown } | undefined> }
  return Object.fromEntries(Object.entries(properties ?? {}).map(([key, schema]) => [key, schema?.type]))
}

/** A value is a string unless the schema of the tool has another type and the text is such a value. */
function toJsonValue(text: string, type: unknown): string {
  const isText = type === undefined || type === 'string' || (Array.isArray(type) && type.includes('string'))
  if (isText) return JSON.stringify(text)
  const value = text.trim().replace(/^(?:True|False|None)$/, (word) => (word === 'None' ? 'null' : word.toLowerCase()))
  return isJson(value) ? value : JSON.stringify(text)
}
