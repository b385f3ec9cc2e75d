/** Shape of a JSON value: types instead of values, except for members whose values are part of the protocol. */
export type Shape = string | { [member: string]: Shape } | [] | [Shape]

/** Members whose text or number is compared, not only its type. */
const LITERAL = new Set(['object', 'type', 'role', 'finish_reason', 'stop_reason', 'code', 'param', 'owned_by'])

export function shapeOf(value: unknown, name = ''): Shape {
  if (value === null) return 'null'
  if (Array.isArray(value)) return value.length === 0 ? [] : [value.map((item) => shapeOf(item, name)).reduce(merge)]
  if (typeof value === 'object') {
    const members = Object.entries(value).map(([key, member]) => [toName(key), shapeOf(member, key)] as const)
    const shape: { [member: string]: Shape } = {}
    for (const [key, member] of members) shape[key] = key in shape ? merge(shape[key]!, member) : member
    return Object.fromEntries(Object.entries(shape).toSorted(([one], [other]) => (one < other ? -1 : 1)))
  }
  return LITERAL.has(name) ? JSON.stringify(value) : typeof value
}

/** Token ids as member names stand for each other. */
function toName(key: string): string {
  return /^\d+$/.test(key) ? 'ID' : key
}

/** Shape of either of two values: alternatives are separated by bars, and members that may be absent end in `?`. */
function merge(one: Shape, other: Shape): Shape {
  if (typeof one === 'string' || typeof other === 'string') {
    const words = [one, other].flatMap((shape) =>
      typeof shape === 'string' ? shape.split(' | ') : [JSON.stringify(shape)],
    )
    return [...new Set(words)].toSorted().join(' | ')
  }
  if (Array.isArray(one) && Array.isArray(other)) {
    const items = [...one, ...other]
    return items.length === 0 ? [] : [items.reduce(merge)]
  }
  if (Array.isArray(one) || Array.isArray(other)) return `${JSON.stringify(one)} | ${JSON.stringify(other)}`
  const keys = new Set([...Object.keys(one), ...Object.keys(other)].map((key) => key.replace(/\?$/, '')))
  const merged: { [member: string]: Shape } = {}
  for (const key of [...keys].toSorted()) {
    const [left, right] = [one, other].map((shape) => shape[key] ?? shape[`${key}?`])
    const isAlways = key in one && key in other
    merged[isAlways ? key : `${key}?`] = left === undefined ? right! : right === undefined ? left : merge(left, right)
  }
  return merged
}

/** An answer without its values. `events` of a stream: their shapes in order, equal neighbours once. */
export interface AnswerShape {
  status: number
  type: string
  body?: Shape
  events?: Shape[]
}

export function toAnswerShape(status: number, contentType: string, text: string): AnswerShape {
  const type = contentType.split(';')[0]!
  if (type === 'text/event-stream') {
    const events = text
      .split('\n\n')
      .filter((event) => event.trim() !== '')
      .map((event) => event.replace(/^data: /, ''))
      .map((data) => (data === '[DONE]' ? data : shapeOf(JSON.parse(data))))
    return {
      status,
      type,
      events: events.filter((event, i) => JSON.stringify(event) !== JSON.stringify(events[i - 1])),
    }
  }
  return type === 'application/json' && text !== ''
    ? { status, type, body: shapeOf(JSON.parse(text)) }
    : { status, type }
}

/** Lists every member in which two shapes differ, as `path: one, not other`. */
export function differences(one: unknown, other: unknown, path = ''): string[] {
  if (JSON.stringify(one) === JSON.stringify(other)) return []
  if (isRecord(one) && isRecord(other)) {
    const keys = [...new Set([...Object.keys(one), ...Object.keys(other)])].toSorted()
    return keys.flatMap((key) => differences(one[key], other[key], path === '' ? key : `${path}.${key}`))
  }
  if (Array.isArray(one) && Array.isArray(other)) {
    const length = Math.max(one.length, other.length)
    return Array.from({ length }, (_, i) => differences(one[i], other[i], `${path}[${i}]`)).flat()
  }
  return [`${path}: ${print(one)}, not ${print(other)}`]
}

function isRecord(value: unknown): value is Record<string, unknown> {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}

function print(value: unknown): string {
  return value === undefined ? 'absent' : JSON.stringify(value)
}
