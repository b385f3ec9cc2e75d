/** An entry of an archive. Its name is not checked: a caller that extracts it must reject paths that leave the target folder. */
export interface TarEntry {
  name: string
  kind: 'file' | 'directory' | 'symlink' | 'hardlink' | 'special'
  /** Permission bits. */
  mode: number
  /** Bytes of the content that follows; 0 for all but files. */
  size: number
  /** Target of a link, else empty. */
  target: string
}

/** An entry, or a piece of the content of the last file entry. */
export type TarPart = { entry: TarEntry } | { data: Buffer }

const BLOCK = 512
/** Limit of a long name or a set of extended fields; the limit of Linux for a path is 4096. */
const MAX_META = 64 * 1024

/**
 * Reads a stream of an untrusted archive (ustar, pax, GNU long names) with bounded memory. Throws TarError for invalid
 * input.
 */
export async function* readTar(source: AsyncIterable<Uint8Array>): AsyncGenerator<TarPart, void, undefined> {
  const input = new BlockInput(source)
  let extended: Fields = {}
  for (;;) {
    const header = await input.take(BLOCK)
    if (header === undefined) throw new TarError('the archive ends too early')
    if (header.every((byte) => byte === 0)) return input.drain()
    const raw = parseHeader(header)
    if (META_TYPES.has(raw.type)) {
      const fields = parseMeta(raw.type, await input.takePadded(raw.size, MAX_META))
      extended = { ...extended, ...fields }
      continue
    }
    const entry = toEntry(raw, extended)
    extended = {}
    yield { entry }
    for await (const data of input.content(entry.size)) yield { data }
  }
}

export class TarError extends Error {
  override readonly name = 'TarError'
}

interface RawHeader {
  name: string
  mode: number
  size: number
  type: string
  target: string
}
type Fields = Partial<Pick<RawHeader, 'name' | 'size' | 'target'>>

/** Extended fields for the next entry, for all entries (nothing in them matters here), GNU long name and link. */
const META_TYPES = new Set(['x', 'g', 'L', 'K'])
const KINDS: Readonly<Record<string, TarEntry['kind']>> = {
  '\0': 'file',
  '0': 'file',
  '7': 'file',
  '1': 'hardlink',
  '2': 'symlink',
  '3': 'special',
  '4': 'special',
  '5': 'directory',
  '6': 'special',
}

function parseHeader(header: Buffer): RawHeader {
  const sum = header.reduce((total, byte, index) => total + (index >= 148 && index < 156 ? 32 : byte), 0)
  if (sum !== parseNumber(header.subarray(148, 156))) throw new TarError('a checksum in the archive is wrong')
  const isUstar = header.toString('latin1', 257, 263) === 'ustar\0'
  const prefix = isUstar ? textOf(header.subarray(345, 500)) : ''
  const name = textOf(header.subarray(0, 100))
  return {
    name: prefix === '' ? name : `${prefix}/${name}`,
    mode: parseNumber(header.subarray(100, 108)) & 0o7777,
    size: parseNumber(header.subarray(124, 136)),
    type: String.fromCharCode(header[156]!),
    target: textOf(header.subarray(157, 257)),
  }
}

function toEntry(raw: RawHeader, fields: Fields): TarEntry {
  const kind = KINDS[raw.type]
  if (kind === undefined) throw new TarError(`the archive has an entry of unknown type ${JSON.stringify(raw.type)}`)
  const merged = { ...raw, ...fields }
  const isLink = kind === 'symlink' || kind === 'hardlink'
  const size = kind === 'file' ? merged.size : 0
  return { name: merged.name, kind, mode: raw.mode, size, target: isLink ? merged.target : '' }
}

function parseMeta(type: string, content: Buffer): Fields {
  if (type === 'L') return { name: textOf(content) }
  if (type === 'K') return { target: textOf(content) }
  if (type === 'g') return {}
  const fields: Fields = {}
  let rest = content
  while (rest.length > 0) {
    const length = Number.parseInt(rest.toString('latin1', 0, 12), 10)
    if (!(length > 4 && length <= rest.length)) throw new TarError('extended fields in the archive are damaged')
    const record = rest.toString('utf8', rest.indexOf(32) + 1, length - 1)
    const [key, value] = [record.slice(0, record.indexOf('=')), record.slice(record.indexOf('=') + 1)]
    if (key === 'path') fields.name = value
    if (key === 'linkpath') fields.target = value
    if (key === 'size') fields.size = toSize(Number(value))
    // Sparse files encode size and content differently and are not supported.
    if (key.startsWith('GNU.sparse')) throw new TarError('the archive has a sparse file')
    rest = rest.subarray(length)
  }
  return fields
}

/** Octal digits, or binary where the first bit is set. */
function parseNumber(field: Buffer): number {
  if ((field[0]! & 0x80) === 0) {
    const digits = textOf(field).trim()
    return digits === '' ? 0 : toSize(Number.parseInt(digits, 8))
  }
  return toSize(field.reduce((value, byte, index) => value * 256 + (index === 0 ? byte & 0x7f : byte), 0))
}

function toSize(value: number): number {
  if (!Number.isSafeInteger(value) || value < 0) throw new TarError('a number in the archive is invalid')
  return value
}

function textOf(field: Buffer): string {
  const end = field.indexOf(0)
  return field.toString('utf8', 0, end === -1 ? field.length : end)
}

class BlockInput {
  readonly #source: AsyncIterator<Uint8Array>
  #buffered: Buffer = Buffer.alloc(0)

  constructor(source: AsyncIterable<Uint8Array>) {
    this.#source = source[Symbol.asyncIterator]()
  }

  /** Undefined if the source ends earlier. */
  async take(size: number): Promise<Buffer | undefined> {
    while (this.#buffered.length < size) {
      if (!(await this.#more())) return undefined
    }
    const taken = this.#buffered.subarray(0, size)
    this.#buffered = this.#buffered.subarray(size)
    return taken
  }

  async takePadded(size: number, max: number): Promise<Buffer> {
    if (size > max) throw new TarError('a name in the archive is too long')
    const content = await this.take(size + paddingOf(size))
    if (content === undefined) throw new TarError('the archive ends too early')
    return content.subarray(0, size)
  }

  async *content(size: number): AsyncGenerator<Buffer, void, undefined> {
    let left = size
    while (left > 0) {
      if (this.#buffered.length === 0 && !(await this.#more())) throw new TarError('the archive ends too early')
      const piece = this.#buffered.subarray(0, left)
      this.#buffered = this.#buffered.subarray(piece.length)
      left -= piece.length
      yield piece
    }
    if ((await this.take(paddingOf(size))) === undefined) throw new TarError('the archive ends too early')
  }

  /** Bytes after the end marker are padding. */
  async drain(): Promise<void> {
    this.#buffered = Buffer.alloc(0)
    while (await this.#more()) this.#buffered = Buffer.alloc(0)
  }

  async #more(): Promise<boolean> {
    const { value, done } = await this.#source.next()
    if (done === true) return false
    const chunk = Buffer.from(value.buffer, value.byteOffset, value.byteLength)
    this.#buffered = this.#buffered.length === 0 ? chunk : Buffer.concat([this.#buffered, chunk])
    return true
  }
}

function paddingOf(size: number): number {
  return (BLOCK - (size % BLOCK)) % BLOCK
}
