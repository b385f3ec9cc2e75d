import * as z from 'zod'
import { parseJsonObject } from '../../lib/json/json-text.ts'
import { listOf } from '../../lib/json/list-of.ts'
import type { Tool } from '../../model/message.ts'
import type { WireFields } from '../wire-event.ts'

/*
 * Tools of the Responses API and their calls. Engines support only functions, so every tool that the harness runs becomes a
 * function, and a call is rendered as the item type that the harness expects. Tools that OpenAI runs are dropped.
 */

// --- wire schemas -----------------------------------------------------------------------------------------------------

const JsonSchema = z
  .unknown()
  .refine((value) => value == null || (typeof value === 'object' && !Array.isArray(value)), 'expected an object')
  .optional()

const named = {
  name: z.string().min(1),
  description: z.string().nullish(),
  defer_loading: z.boolean().nullish(),
}

const FunctionTool = z.looseObject({
  type: z.literal('function'),
  ...named,
  parameters: JsonSchema,
  strict: z.boolean().nullish(),
})

const CustomTool = z.looseObject({
  type: z.literal('custom'),
  ...named,
  format: z.looseObject({ type: z.string(), syntax: z.string().nullish(), definition: z.string().nullish() }).nullish(),
})

const toolSchemas = {
  function: FunctionTool,
  custom: CustomTool,
  namespace: z.looseObject({
    type: z.literal('namespace'),
    name: z.string().min(1),
    description: z.string().nullish(),
    tools: listOf(byType({ function: FunctionTool, custom: CustomTool })),
  }),
  local_shell: z.looseObject({ type: z.literal('local_shell') }),
  shell: z.looseObject({ type: z.literal('shell'), environment: z.looseObject({ type: z.string() }).nullish() }),
  apply_patch: z.looseObject({ type: z.literal('apply_patch') }),
  tool_search: z.looseObject({
    type: z.literal('tool_search'),
    execution: z.string().nullish(),
    description: z.string().nullish(),
    parameters: JsonSchema,
  }),
}

export const WireTool = byType(toolSchemas)
export type WireTool = z.infer<typeof WireTool>

/** Selects the schema by type. A tool of an unknown type is not parsed. */
function byType<S extends Record<string, z.ZodType>>(
  schemas: S,
): z.ZodType<{ [K in keyof S]: z.infer<S[K]> }[keyof S] | { type: 'hosted' }> {
  return z.looseObject({ type: z.string() }).transform((value, context) => {
    const schema = Object.hasOwn(schemas, value.type) ? schemas[value.type] : undefined
    if (schema === undefined) return { type: 'hosted' as const }
    const parsed = schema.safeParse(value)
    if (parsed.success) return parsed.data as z.infer<S[keyof S]>
    for (const issue of parsed.error.issues) context.addIssue({ ...issue })
    return z.NEVER
  })
}

// --- the table --------------------------------------------------------------------------------------------------------

export type CallKind = 'function' | 'custom' | 'local-shell' | 'shell' | 'apply-patch' | 'tool-search'

/** A tool, as the harness identifies it. */
interface CallTarget {
  kind: CallKind
  name: string
  namespace?: string
}

/** Maps the tools of one request to the names that the engine receives, and back. */
export interface ToolTable {
  tools: Tool[]
  /** Returns the engine's name of a tool; undefined when the tool was not declared. */
  find(target: CallTarget): string | undefined
  /** Returns a plain function for a name that was not declared. */
  targetOf(name: string): CallTarget
}

/**
 * `loaded`: tools in items of the input. The same tools in the same order always get the same names: the first tool with a
 * name keeps it, later tools get the suffixes `_2`, `_3`.
 */
export function createToolTable(declared: readonly WireTool[], loaded: readonly WireTool[] = []): ToolTable {
  const hasClientSearch = declared.some((tool) => tool.type === 'tool_search' && tool.execution === 'client')
  const shown = declared.flatMap(toEntries).filter((entry) => !(entry.isDeferred && hasClientSearch))
  const names = new Map<string, string>()
  const targets = new Map<string, CallTarget>()
  const tools: Tool[] = []
  for (const { target, tool } of [...shown, ...loaded.flatMap(toEntries)]) {
    if (names.has(keyOf(target))) continue
    const name = uniqueName(plainName(target), targets)
    names.set(keyOf(target), name)
    targets.set(name, target)
    tools.push({ name, ...tool })
  }
  return {
    tools,
    find: (target) => names.get(keyOf(target)),
    targetOf: (name) => targets.get(name) ?? { kind: 'function', name },
  }
}

/** A deferred tool is hidden until the harness's tool search finds it. */
interface Entry {
  target: CallTarget
  tool: Omit<Tool, 'name'>
  isDeferred?: boolean
}

function toEntries(tool: WireTool): Entry[] {
  switch (tool.type) {
    case 'function':
      return [functionEntry(tool)]
    case 'custom':
      return [customEntry(tool)]
    case 'namespace':
      return namespaceEntries(tool)
    case 'local_shell':
      return [{ target: { kind: 'local-shell', name: 'local_shell' }, tool: LOCAL_SHELL }]
    case 'shell':
      // OpenAI runs the container.
      if (tool.environment?.type.startsWith('container')) return []
      return [{ target: { kind: 'shell', name: 'shell' }, tool: SHELL }]
    case 'apply_patch':
      return [{ target: { kind: 'apply-patch', name: 'apply_patch' }, tool: APPLY_PATCH }]
    case 'tool_search': {
      if (tool.execution !== 'client') return []
      const { description, parameters } = tool
      return [
        {
          target: { kind: 'tool-search', name: 'tool_search' },
          tool: { description: description ?? undefined, parameters: parameters ?? undefined },
        },
      ]
    }
    case 'hosted':
      return []
  }
}

function functionEntry(tool: z.infer<typeof FunctionTool>): Entry {
  return {
    target: { kind: 'function', name: tool.name },
    tool: {
      description: tool.description ?? undefined,
      parameters: tool.parameters ?? undefined,
      strict: tool.strict ?? undefined,
    },
    isDeferred: tool.defer_loading === true,
  }
}

/** The only parameter of the function is the free text. The description contains the grammar, which is not enforced. */
function customEntry(tool: z.infer<typeof CustomTool>): Entry {
  const { syntax, definition } = tool.format ?? {}
  const grammar = definition ? `The input must match this ${syntax ?? 'formal'} grammar:\n${definition}` : undefined
  const description = [tool.description, grammar].filter((text) => text != null && text !== '').join('\n\n')
  return {
    target: { kind: 'custom', name: tool.name },
    tool: { description: description || undefined, parameters: FREE_TEXT },
    isDeferred: tool.defer_loading === true,
  }
}

/** Only the first tool has the description of the namespace. */
function namespaceEntries(space: z.infer<typeof toolSchemas.namespace>): Entry[] {
  return space.tools.flatMap(toEntries).map(({ target, tool, isDeferred }, i) => {
    const description = [i === 0 ? space.description : undefined, tool.description].filter((text) => text).join('\n\n')
    return {
      target: { ...target, namespace: space.name },
      tool: { ...tool, description: description || undefined },
      isDeferred,
    }
  })
}

function plainName({ name, namespace }: CallTarget): string {
  if (namespace === undefined) return name
  return namespace.endsWith('__') ? namespace + name : `${namespace}__${name}`
}

function uniqueName(base: string, used: ReadonlyMap<string, unknown>): string {
  let name = base
  for (let i = 2; used.has(name); i++) name = `${base}_${i}`
  return name
}

function keyOf({ kind, name, namespace }: CallTarget): string {
  return JSON.stringify([kind, name, namespace ?? ''])
}

const FREE_TEXT = {
  type: 'object',
  properties: { input: { type: 'string', description: 'The whole input of the tool, as plain text.' } },
  required: ['input'],
  additionalProperties: false,
}

const LOCAL_SHELL: Omit<Tool, 'name'> = {
  description: 'Runs one program on this machine and returns its output.',
  parameters: {
    type: 'object',
    properties: {
      command: { type: 'array', items: { type: 'string' }, description: 'The program and its arguments.' },
      working_directory: { type: 'string', description: 'Where to run it.' },
      env: { type: 'object', additionalProperties: { type: 'string' }, description: 'Variables to add.' },
      timeout_ms: { type: 'integer', description: 'When to give up, in milliseconds.' },
      user: { type: 'string', description: 'The user to run it as.' },
    },
    required: ['command'],
    additionalProperties: false,
  },
}

const SHELL: Omit<Tool, 'name'> = {
  description: 'Runs shell commands on this machine, each in a shell of its own, and returns what they print.',
  parameters: {
    type: 'object',
    properties: {
      commands: { type: 'array', items: { type: 'string' }, description: 'The command lines.' },
      timeout_ms: { type: 'integer', description: 'When to give up, in milliseconds.' },
      max_output_length: { type: 'integer', description: 'How many characters of output to return at most.' },
    },
    required: ['commands'],
    additionalProperties: false,
  },
}

const APPLY_PATCH: Omit<Tool, 'name'> = {
  description: 'Creates, changes or deletes one file.',
  parameters: {
    type: 'object',
    properties: {
      type: { type: 'string', enum: ['create_file', 'update_file', 'delete_file'] },
      path: { type: 'string', description: 'The file.' },
      diff: { type: 'string', description: 'The change, as a V4A diff; not for delete_file.' },
    },
    required: ['type', 'path'],
    additionalProperties: false,
  },
}

// --- parse calls ------------------------------------------------------------------------------------------------------

/** A call item of the input. Its type determines its fields. */
export interface CallItem {
  type:
    | 'function_call'
    | 'custom_tool_call'
    | 'tool_search_call'
    | 'local_shell_call'
    | 'shell_call'
    | 'apply_patch_call'
  name?: string
  namespace?: string | null
  arguments?: unknown
  input?: string
  action?: WireFields
  operation?: WireFields
}

/** Returns the call as the engine sampled it. Arguments of structured items are equal to the sampled arguments as JSON. */
export function readCall(item: CallItem, table: ToolTable): { name: string; arguments: string } {
  const kind = KINDS[item.type]
  const ownName = OWN_NAMES[item.type]
  const target: CallTarget =
    ownName === undefined
      ? { kind, name: item.name ?? '', namespace: item.namespace ?? undefined }
      : { kind, name: ownName }
  return { name: table.find(target) ?? plainName(target), arguments: argumentsOf(item) }
}

const KINDS: Readonly<Record<CallItem['type'], CallKind>> = {
  function_call: 'function',
  custom_tool_call: 'custom',
  tool_search_call: 'tool-search',
  local_shell_call: 'local-shell',
  shell_call: 'shell',
  apply_patch_call: 'apply-patch',
}

const OWN_NAMES: Readonly<Partial<Record<CallItem['type'], string>>> = {
  tool_search_call: 'tool_search',
  local_shell_call: 'local_shell',
  shell_call: 'shell',
  apply_patch_call: 'apply_patch',
}

function argumentsOf(item: CallItem): string {
  switch (item.type) {
    case 'function_call':
      return typeof item.arguments === 'string' ? item.arguments : ''
    case 'custom_tool_call':
      return JSON.stringify({ input: item.input ?? '' })
    case 'tool_search_call':
      return typeof item.arguments === 'string' ? item.arguments : JSON.stringify(item.arguments ?? {})
    case 'local_shell_call': {
      const { type: _type, env, ...action } = item.action ?? {}
      const hasEnv = env != null && Object.keys(env).length > 0
      return JSON.stringify(withoutNulls(hasEnv ? { ...action, env } : action))
    }
    case 'shell_call':
      return JSON.stringify(withoutNulls(item.action ?? {}))
    case 'apply_patch_call':
      return JSON.stringify(item.operation ?? {})
  }
}

function withoutNulls(fields: WireFields): WireFields {
  return Object.fromEntries(Object.entries(fields).filter(([, value]) => value !== null))
}

// --- render calls -----------------------------------------------------------------------------------------------------

/** Renders one call as an item, whose text may be streamed while it is sampled. */
export interface CallWriter {
  /** Adds a sampled piece of the arguments. Returns the text to send. */
  push(piece: string): string
  /** Ends the arguments. Returns the rest of the text to send. */
  end(): string
  item(status: string): WireFields
  /** The event types of the text, and the field of the complete text; absent for an item without text. */
  text?: { delta: string; done: string; field: string }
}

export interface OutgoingCall {
  /** The engine's name of the tool. */
  name: string
  callId: string
  itemId(prefix: string): string
}

/** Whether a call of this name can be sent before its arguments are complete. */
export function isStreamed(name: string, table: ToolTable): boolean {
  const { kind } = table.targetOf(name)
  return kind === 'function' || kind === 'custom'
}

/** `whole`: all arguments of a call that is not streamed. */
export function createCallWriter(call: OutgoingCall, table: ToolTable, whole?: string): CallWriter {
  const target = table.targetOf(call.name)
  if (whole !== undefined) {
    const fields = structuredFields(target, whole, call)
    if (fields !== undefined) {
      const { id, type, ...rest } = fields
      return { push: () => '', end: () => '', item: (status) => ({ id, type, status, ...rest }) }
    }
    // Invalid arguments are sent as a plain call: the harness reports an unknown function to the model.
    return functionWriter({ kind: 'function', name: call.name }, call)
  }
  return target.kind === 'custom' ? customWriter(target, call) : functionWriter(target, call)
}

function functionWriter(target: CallTarget, call: OutgoingCall): CallWriter {
  let text = ''
  return {
    push(piece) {
      text += piece
      return piece
    },
    end: () => '',
    item: (status) => ({
      id: call.itemId('fc'),
      type: 'function_call',
      status,
      arguments: text,
      call_id: call.callId,
      ...nameFields(target),
    }),
    text: {
      delta: 'response.function_call_arguments.delta',
      done: 'response.function_call_arguments.done',
      field: 'arguments',
    },
  }
}

function customWriter(target: CallTarget, call: OutgoingCall): CallWriter {
  const input = new FreeText()
  return {
    push: (piece) => input.push(piece),
    end: () => input.end(),
    item: (status) => ({
      id: call.itemId('ctc'),
      type: 'custom_tool_call',
      status,
      call_id: call.callId,
      input: input.text,
      ...nameFields(target),
    }),
    text: {
      delta: 'response.custom_tool_call_input.delta',
      done: 'response.custom_tool_call_input.done',
      field: 'input',
    },
  }
}

function nameFields({ name, namespace }: CallTarget): WireFields {
  return namespace === undefined ? { name } : { name, namespace }
}

/** Models sample null for absent values. */
const optional = <T extends z.ZodType>(type: T) =>
  type.nullish().transform((value) => (value === null ? undefined : value))

const LocalShellArguments = z.object({
  command: listOf(z.string()),
  env: optional(z.record(z.string(), z.string())),
  timeout_ms: optional(z.number()),
  user: optional(z.string()),
  working_directory: optional(z.string()),
})

const ShellArguments = z.object({
  commands: listOf(z.string()),
  timeout_ms: optional(z.number()),
  max_output_length: optional(z.number()),
})

const PatchArguments = z.discriminatedUnion('type', [
  z.object({ type: z.literal('create_file'), path: z.string(), diff: z.string() }),
  z.object({ type: z.literal('update_file'), path: z.string(), diff: z.string() }),
  z.object({ type: z.literal('delete_file'), path: z.string() }),
])

/** Returns the item of a call with structured arguments; undefined when the sampled text does not match their schema. */
function structuredFields(target: CallTarget, text: string, call: OutgoingCall): WireFields | undefined {
  const value = parseJsonObject(text)
  const { callId: call_id } = call
  switch (target.kind) {
    case 'function':
    case 'custom':
      return undefined
    case 'tool-search':
      if (value === undefined) return undefined
      return { id: call.itemId('tsc'), type: 'tool_search_call', call_id, execution: 'client', arguments: value }
    case 'local-shell': {
      const { success, data } = LocalShellArguments.safeParse(value)
      if (!success) return undefined
      const action = { type: 'exec', ...data, env: data.env ?? {} }
      return { id: call.itemId('lsh'), type: 'local_shell_call', call_id, action }
    }
    case 'shell': {
      const { success, data } = ShellArguments.safeParse(value)
      if (!success) return undefined
      const { commands, timeout_ms = null, max_output_length = null } = data
      return { id: call.itemId('sh'), type: 'shell_call', call_id, action: { commands, timeout_ms, max_output_length } }
    }
    case 'apply-patch': {
      const { success, data } = PatchArguments.safeParse(value)
      return success ? { id: call.itemId('apc'), type: 'apply_patch_call', call_id, operation: data } : undefined
    }
  }
}

/**
 * Reads the text in `{"input": "…"}` while it is sampled. Other arguments are read when they are complete: the text is their
 * member `input`, or else all arguments unchanged, so that the harness reports the error to the model.
 */
class FreeText {
  #arguments = ''
  /** Position up to which the arguments were read. */
  #at = 0
  #state: 'before' | 'inside' | 'after' | 'other' = 'before'
  text = ''

  push(piece: string): string {
    this.#arguments += piece
    if (this.#state === 'before') this.#findStart()
    if (this.#state !== 'inside') return ''
    return this.#append(this.#readString())
  }

  end(): string {
    if (this.#state === 'before' || this.#state === 'other') return this.#append(this.#wholeText())
    // An incomplete escape or surrogate pair is sent unchanged.
    return this.#state === 'inside' ? this.#append(this.#arguments.slice(this.#at)) : ''
  }

  #append(text: string): string {
    this.text += text
    return text
  }

  #wholeText(): string {
    const input = parseJsonObject(this.#arguments)?.['input']
    return typeof input === 'string' ? input : this.#arguments
  }

  #findStart(): void {
    const start = /^\s*\{\s*"input"\s*:\s*"/.exec(this.#arguments)
    if (start !== null) {
      this.#at = start[0].length
      this.#state = 'inside'
      return
    }
    const begun = this.#arguments.replaceAll(/\s/g, '')
    if (!'{"input":"'.startsWith(begun) || begun === '{"input":"') this.#state = 'other'
  }

  /** Accepts raw line breaks and unknown escapes, which models sample, and keeps them unchanged. */
  #readString(): string {
    const source = this.#arguments
    let text = ''
    for (;;) {
      const stop = nextOf(source, this.#at)
      text += source.slice(this.#at, stop)
      this.#at = stop
      if (stop === source.length) break
      if (source[stop] === '"') {
        this.#state = 'after'
        return text
      }
      const escape = readEscape(source, stop)
      if (escape === undefined) break
      text += escape.text
      this.#at = escape.end
    }
    return this.#withoutHighSurrogate(text)
  }

  /** A high surrogate waits for the low surrogate: alone it has no UTF-8 encoding. */
  #withoutHighSurrogate(text: string): string {
    const last = text.charCodeAt(text.length - 1)
    if (!(last >= 0xd800 && last <= 0xdbff)) return text
    const isEscaped = this.#arguments[this.#at - 1] !== text.at(-1)
    this.#at -= isEscaped ? '\\ud83d'.length : 1
    return text.slice(0, -1)
  }
}

/** Returns the position of the next quote or backslash, or the end. */
function nextOf(source: string, from: number): number {
  for (let i = from; i < source.length; i++) {
    const code = source.charCodeAt(i)
    if (code === 0x22 || code === 0x5c) return i
  }
  return source.length
}

/** Undefined when the escape is incomplete. */
function readEscape(source: string, at: number): { text: string; end: number } | undefined {
  const letter = source[at + 1]
  if (letter === undefined) return undefined
  if (letter !== 'u') return { text: ESCAPES[letter] ?? `\\${letter}`, end: at + 2 }
  const digits = /^[0-9a-fA-F]{0,4}/.exec(source.slice(at + 2, at + 6))?.[0] ?? ''
  if (digits.length === 4) return { text: String.fromCharCode(Number.parseInt(digits, 16)), end: at + 6 }
  return at + 2 + digits.length === source.length ? undefined : { text: '\\u', end: at + 2 }
}

const ESCAPES: Readonly<Record<string, string>> = {
  '"': '"',
  '\\': '\\',
  '/': '/',
  b: '\b',
  f: '\f',
  n: '\n',
  r: '\r',
  t: '\t',
}
