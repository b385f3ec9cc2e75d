/** A value of Thrift's compact protocol; only the types that Parquet headers use. */
export type ThriftValue =
  | { i32: number }
  | { i64: number }
  | { text: string }
  /** Elements of one type. */
  | { list: readonly ThriftValue[] }
  /** Fields by number, in ascending order; undefined fields are skipped. */
  | { struct: readonly (readonly [id: number, value: ThriftValue | undefined])[] }

/** https://github.com/apache/thrift/blob/master/doc/specs/thrift-compact-protocol.md */
export function encodeThrift(value: ThriftValue): Buffer {
  const bytes: number[] = []
  writeValue(bytes, value)
  return Buffer.from(bytes)
}

function writeValue(out: number[], value: ThriftValue): void {
  if ('i32' in value) writeZigzag(out, value.i32)
  else if ('i64' in value) writeZigzag(out, value.i64)
  else if ('text' in value) writeText(out, value.text)
  else if ('list' in value) writeList(out, value.list)
  else writeStruct(out, value.struct)
}

function writeStruct(out: number[], fields: readonly (readonly [id: number, value: ThriftValue | undefined])[]): void {
  let last = 0
  for (const [id, value] of fields) {
    if (value === undefined) continue
    // The difference fits in four bits: no Parquet structure skips 15 fields.
    out.push(((id - last) << 4) | typeCode(value))
    writeValue(out, value)
    last = id
  }
  out.push(0)
}

function writeList(out: number[], items: readonly ThriftValue[]): void {
  const [first] = items
  const code = first === undefined ? 0 : typeCode(first)
  if (items.length < 15) out.push((items.length << 4) | code)
  else {
    out.push(0xf0 | code)
    writeVarint(out, items.length)
  }
  for (const item of items) writeValue(out, item)
}

function writeText(out: number[], text: string): void {
  const bytes = Buffer.from(text)
  writeVarint(out, bytes.length)
  for (const byte of bytes) out.push(byte)
}

function typeCode(value: ThriftValue): number {
  if ('i32' in value) return 5
  if ('i64' in value) return 6
  if ('text' in value) return 8
  return 'list' in value ? 9 : 12
}

/** The numbers are counts and offsets: never negative, below 2^52. */
function writeZigzag(out: number[], value: number): void {
  writeVarint(out, value * 2)
}

export function writeVarint(out: number[], value: number): void {
  let rest = value
  while (rest >= 0x80) {
    out.push((rest % 0x80) | 0x80)
    rest = Math.floor(rest / 0x80)
  }
  out.push(rest)
}
