/** A JSON value as its original bytes, not parsed. */
export class JsonBytes {
  readonly pieces: readonly Uint8Array[]

  /** Concatenated, they must be valid JSON. */
  constructor(pieces: readonly Uint8Array[]) {
    this.pieces = pieces
  }

  /** Number of bytes. */
  get length(): number {
    return this.pieces.reduce((sum, piece) => sum + piece.length, 0)
  }

  parse(): unknown {
    return JSON.parse(Buffer.concat(this.pieces).toString())
  }

  toJSON(): unknown {
    return this.parse()
  }
}

/** Like `JSON.stringify()` for plain data; copies the bytes of every `JsonBytes` in it. */
export function toJsonBytes(value: unknown): JsonBytes {
  const pieces: Uint8Array[] = []
  let text = ''

  const add = (part: unknown): void => {
    if (part instanceof JsonBytes) {
      pieces.push(Buffer.from(text), ...part.pieces)
      text = ''
    } else if (Array.isArray(part)) {
      addAll(
        '[',
        part.map((item) => ['', item ?? null] as const),
        ']',
      )
    } else if (typeof part === 'object' && part !== null) {
      const members = Object.entries(part).filter(([, member]) => member !== undefined)
      addAll(
        '{',
        members.map(([name, member]) => [`${JSON.stringify(name)}:`, member] as const),
        '}',
      )
    } else {
      text += JSON.stringify(part)
    }
  }
  const addAll = (open: string, parts: (readonly [string, unknown])[], close: string): void => {
    text += open
    parts.forEach(([before, part], i) => {
      text += i === 0 ? before : `,${before}`
      add(part)
    })
    text += close
  }

  add(value)
  pieces.push(Buffer.from(text))
  return new JsonBytes(pieces)
}
