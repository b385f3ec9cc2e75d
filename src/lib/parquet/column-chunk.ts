import { zstdCompressSync } from 'node:zlib'
import { Levels } from './levels.ts'
import { physicalTypes, type Leaf, type Primitive } from './schema.ts'
import { encodeThrift, type ThriftValue } from './thrift.ts'

const PLAIN = { i32: 0 }
const RLE = { i32: 3 }
const ZSTD = { i32: 6 }

/** Values of one stored column in one row group. They are encoded when they are added. */
export class ColumnChunk {
  readonly #leaf: Leaf
  readonly #repetitions: Levels
  readonly #definitions: Levels
  readonly #maxDefinition: number
  readonly #encode: (values: ArrayLike<unknown>) => Uint8Array
  readonly #values: Uint8Array[] = []
  /** Single values, collected until they fill an array. */
  #loose: unknown[] = []
  #count = 0
  #bytes = 0

  constructor(leaf: Leaf) {
    const lists = leaf.steps.filter((step) => step === 'list').length
    this.#leaf = leaf
    // Every step may be null, and every list may be empty.
    this.#maxDefinition = leaf.steps.length + lists
    this.#repetitions = new Levels(lists)
    this.#definitions = new Levels(this.#maxDefinition)
    this.#encode = encoders[leaf.type]
  }

  add(row: unknown): void {
    this.#visit(row, 0, { repetition: 0, definition: 0, depth: 0 })
  }

  /** Approximate number of bytes. */
  get byteLength(): number {
    return this.#bytes + this.#repetitions.size + this.#definitions.size
  }

  /** Returns the bytes of the chunk at `offset` of the file, and its metadata for the footer. */
  finish(offset: number): { bytes: Buffer[]; metadata: ThriftValue; length: number; rawLength: number } {
    this.#pack()
    const body = Buffer.concat([this.#repetitions.encode(), this.#definitions.encode(), ...this.#values])
    const data = zstdCompressSync(body)
    const header = encodeThrift({
      struct: [
        [1, { i32: 0 }],
        [2, { i32: body.length }],
        [3, { i32: data.length }],
        [
          5,
          {
            struct: [
              [1, { i32: this.#count }],
              [2, PLAIN],
              [3, RLE],
              [4, RLE],
            ],
          },
        ],
      ],
    })
    const [length, rawLength] = [header.length + data.length, header.length + body.length]
    const details: ThriftValue = {
      struct: [
        [1, { i32: physicalTypes[this.#leaf.type].physical }],
        [2, { list: [PLAIN, RLE] }],
        [3, { list: this.#leaf.path.map((text) => ({ text })) }],
        [4, ZSTD],
        [5, { i64: this.#count }],
        [6, { i64: rawLength }],
        [7, { i64: length }],
        [9, { i64: offset }],
      ],
    }
    const metadata: ThriftValue = {
      struct: [
        [2, { i64: offset }],
        [3, details],
      ],
    }
    return { bytes: [header, data], metadata, length, rawLength }
  }

  /** Dremel encoding: each value with its repetition level and its definition level. */
  #visit(value: unknown, step: number, at: { repetition: number; definition: number; depth: number }): void {
    const next = this.#leaf.steps[step]
    if (next === undefined) return this.#push(value, at)
    if (next !== 'list') {
      const inner = (value as Record<string, unknown>)[next.field]
      if (inner == null) return this.#skip(at)
      return this.#visit(inner, step + 1, { ...at, definition: at.definition + 1 })
    }
    const items = value as ArrayLike<unknown>
    if (items.length === 0) return this.#skip(at)
    const depth = at.depth + 1
    if (ArrayBuffer.isView(items)) return this.#pushAll(items, at.repetition, depth)
    for (let i = 0; i < items.length; i++) {
      const repetition = i === 0 ? at.repetition : depth
      const inner = { repetition, definition: at.definition + 1, depth }
      if (items[i] == null) this.#skip(inner)
      else this.#visit(items[i], step + 1, { ...inner, definition: inner.definition + 1 })
    }
  }

  #skip({ repetition, definition }: { repetition: number; definition: number }): void {
    this.#repetitions.push(repetition)
    this.#definitions.push(definition)
    this.#count += 1
  }

  #push(value: unknown, at: { repetition: number; definition: number }): void {
    this.#skip(at)
    this.#loose.push(value)
    this.#bytes += typeof value === 'string' ? value.length + 4 : 8
    // A multiple of eight, because eight booleans share a byte.
    if (this.#leaf.type === 'string' || this.#loose.length >= 4096) this.#pack()
  }

  /** A typed array is its own list of values, none of them null. */
  #pushAll(items: ArrayLike<unknown>, repetition: number, depth: number): void {
    this.#pack()
    this.#repetitions.push(repetition)
    this.#repetitions.push(depth, items.length - 1)
    this.#definitions.push(this.#maxDefinition, items.length)
    this.#count += items.length
    const bytes = this.#encode(items)
    this.#values.push(bytes)
    this.#bytes += bytes.length
  }

  #pack(): void {
    if (this.#loose.length === 0) return
    this.#values.push(this.#encode(this.#loose))
    this.#loose = []
  }
}

type TypedArray = Int32Array | Float32Array | Float64Array | BigInt64Array

const encoders: Record<Primitive, (values: ArrayLike<unknown>) => Uint8Array> = {
  string: (values) => Buffer.concat(Array.from(values as ArrayLike<string>, encodeText)),
  boolean: (values) => encodeBooleans(values as ArrayLike<boolean>),
  int32: (values) => bytesOf(values instanceof Int32Array ? values : Int32Array.from(values as ArrayLike<number>)),
  uint8: (values) => bytesOf(Int32Array.from(values as ArrayLike<number>)),
  int64: (values) => bytesOf(BigInt64Array.from(values as ArrayLike<number>, BigInt)),
  float: (values) => bytesOf(values instanceof Float32Array ? values : Float32Array.from(values as ArrayLike<number>)),
  double: (values) => bytesOf(Float64Array.from(values as ArrayLike<number>)),
}

function bytesOf({ buffer, byteOffset, byteLength }: TypedArray): Uint8Array {
  return new Uint8Array(buffer, byteOffset, byteLength)
}

function encodeText(text: string): Buffer {
  const length = Buffer.byteLength(text)
  const bytes = Buffer.allocUnsafe(4 + length)
  bytes.writeUInt32LE(length)
  bytes.write(text, 4)
  return bytes
}

function encodeBooleans(values: ArrayLike<boolean>): Uint8Array {
  const bytes = new Uint8Array(Math.ceil(values.length / 8))
  for (let i = 0; i < values.length; i++) if (values[i]) bytes[i >> 3] = (bytes[i >> 3] ?? 0) | (1 << (i & 7))
  return bytes
}
