import { crc32 } from 'node:zlib'
import type { Choice, Delivery, TurnResponse } from '../../model/turn.ts'
import type { TurnEnd, TurnIntent } from '../store.ts'
import type { ByteWriter } from './byte-writer.ts'
import type { PromptBase } from './recent-prompts.ts'
import type { TextBase } from './recent-texts.ts'

/*
 * The file is a sequence of frames, each aligned to four bytes:
 *
 *   u32 magic | u32 payload length | u32 CRC-32 of the payload | payload
 *
 * and a payload is one record, all numbers little-endian:
 *
 *   u8 kind | u8 zero | u16 columns | u32 sequence | columns x (u32 type, u32 bytes) | the columns, each padded to four
 *
 * Column 0 is the record's header as JSON; the others are arrays and long texts, in the order documented for each kind.
 */

/** Version that this code writes, and the newest it reads. */
export const SCHEMA_VERSION = 1

/** F5 and FF do not occur in UTF-8, and no byte is zero: neither text nor token ids can look like a frame. */
export const MAGIC = Buffer.from([0xf5, 0x50, 0x4c, 0xff])
export const FRAME_BYTES = 12
export const MAX_PAYLOAD_BYTES = 2 ** 30

const FIXED_BYTES = 8
const TABLE_ENTRY_BYTES = 8

export const RecordKind = { open: 1, intent: 2, end: 3, delivery: 4, close: 5, pack: 6 } as const
export type RecordKind = (typeof RecordKind)[keyof typeof RecordKind]

const ColumnType = { text: 1, int32: 2, float32: 3, bytes: 4 } as const

export type Column = string | Int32Array | Float32Array | Buffer

/** No further columns. First record of a file, and of every writer that continues it. */
export interface OpenHeader {
  schemaVersion: number
  id: string
  createdAt: number
  origin: Readonly<Record<string, unknown>>
  /** Present if the file existed. `cleanly`: its last record was a close, so no earlier record is missing. `isContinued`: see `SessionOpening`. */
  resumed?: { at: number; cleanly: boolean; droppedBytes: number; isContinued?: boolean }
}

/** One column: the request text, or its middle part if `base` refers to both ends. */
export interface IntentHeader extends Omit<TurnIntent, 'request'> {
  base?: TextBase
}

/** Columns of a response: prompt ids or their tail, then ids and logprobs of each choice. */
export interface EndHeader extends Omit<TurnEnd, 'response'> {
  response?: Omit<TurnResponse, 'promptIds' | 'choices'> & { choices: Omit<Choice, 'ids' | 'logprobs'>[] }
  base?: PromptBase
}

/** No further columns. */
export interface DeliveryHeader {
  turnId: string
  delivery: Delivery
}

/** No further columns. `records` counts those before this one, `turns` the intents among them. */
export interface CloseHeader {
  closedAt: number
  complete: boolean
  reasons: string[]
  turns: number
  records: number
}

/** One column: `records` frames of `bytes` bytes, compressed together. Its sequence is that of the first. */
export interface PackHeader {
  records: number
  bytes: number
}

export type LogRecord =
  | { kind: typeof RecordKind.open; header: OpenHeader }
  | { kind: typeof RecordKind.intent; header: IntentHeader }
  | { kind: typeof RecordKind.end; header: EndHeader }
  | { kind: typeof RecordKind.delivery; header: DeliveryHeader }
  | { kind: typeof RecordKind.close; header: CloseHeader }
  | { kind: typeof RecordKind.pack; header: PackHeader }

/** Its columns are views of the reader's buffer: copy what is needed after the next read. */
export type StoredRecord = LogRecord & { sequence: number; columns: StoredColumn[] }

export interface StoredColumn {
  type: number
  bytes: Buffer
}

/** Appends one frame. If this throws, the caller must truncate the writer. */
export function writeRecord(
  writer: ByteWriter,
  record: LogRecord,
  sequence: number,
  columns: readonly Column[] = [],
): void {
  const all = [JSON.stringify(record.header), ...columns]
  const frame = writer.skip(FRAME_BYTES + FIXED_BYTES + all.length * TABLE_ENTRY_BYTES)
  const payload = frame + FRAME_BYTES
  writer.setUint8(payload, record.kind)
  writer.setUint8(payload + 1, 0)
  writer.setUint16(payload + 2, all.length)
  writer.setUint32(payload + 4, sequence)
  all.forEach((column, index) => {
    const entry = payload + FIXED_BYTES + index * TABLE_ENTRY_BYTES
    writer.setUint32(entry, typeOf(column))
    writer.setUint32(entry + 4, putColumn(writer, column))
    writer.align()
  })
  const length = writer.length - payload
  if (length > MAX_PAYLOAD_BYTES) throw new RangeError(`A record of ${length} bytes is too large for a call log`)
  writer.setUint32(frame, MAGIC.readUInt32LE())
  writer.setUint32(frame + 4, length)
  writer.setUint32(frame + 8, crc32(writer.bytes.subarray(payload)))
}

/** Reads a payload with a valid checksum. Throws if it is not a record. */
export function readRecord(payload: Buffer): StoredRecord {
  const kind = payload.readUInt8(0)
  const count = payload.readUInt16LE(2)
  const columns: StoredColumn[] = []
  let at = FIXED_BYTES + count * TABLE_ENTRY_BYTES
  for (let index = 0; index < count; index += 1) {
    const entry = FIXED_BYTES + index * TABLE_ENTRY_BYTES
    const size = payload.readUInt32LE(entry + 4)
    if (at + size > payload.length) throw new RangeError(`Column ${index} exceeds its record`)
    columns.push({ type: payload.readUInt32LE(entry), bytes: payload.subarray(at, at + size) })
    at += (size + 3) & ~3
  }
  const header: unknown = JSON.parse(toText(columns.shift()))
  if (!isRecordKind(kind) || typeof header !== 'object' || header === null) throw new TypeError('Not a known record')
  // The checksum is valid, so a writer of a supported schema has written this header.
  return { kind, header, sequence: payload.readUInt32LE(4), columns } as StoredRecord
}

export function toText(column: StoredColumn | undefined): string {
  return expectColumn(column, ColumnType.text).toString('utf8')
}

export function toInt32(column: StoredColumn | undefined): Int32Array {
  const bytes = expectColumn(column, ColumnType.int32)
  const ids = new Int32Array(bytes.length / 4)
  bytes.copy(bytesOf(ids))
  return ids
}

export function toFloat32(column: StoredColumn | undefined): Float32Array {
  const bytes = expectColumn(column, ColumnType.float32)
  const values = new Float32Array(bytes.length / 4)
  bytes.copy(bytesOf(values))
  return values
}

export function toBytes(column: StoredColumn | undefined): Buffer {
  return expectColumn(column, ColumnType.bytes)
}

function expectColumn(column: StoredColumn | undefined, type: number): Buffer {
  if (column?.type !== type) throw new TypeError(`Expected a column of type ${type}, got ${column?.type ?? 'none'}`)
  return column.bytes
}

function isRecordKind(kind: number): kind is RecordKind {
  return Object.values<number>(RecordKind).includes(kind)
}

function typeOf(column: Column): number {
  if (typeof column === 'string') return ColumnType.text
  if (column instanceof Int32Array) return ColumnType.int32
  if (column instanceof Float32Array) return ColumnType.float32
  return ColumnType.bytes
}

function putColumn(writer: ByteWriter, column: Column): number {
  return typeof column === 'string' ? writer.putText(column) : writer.putBytes(bytesOf(column))
}

/** The bytes in memory: little-endian, because the store rejects other machines. */
function bytesOf(array: Int32Array | Float32Array | Buffer): Uint8Array {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength)
}
