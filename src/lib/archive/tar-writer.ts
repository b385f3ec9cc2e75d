import { createReadStream } from 'node:fs'
import { lstat, readdir, readlink } from 'node:fs/promises'
import { join } from 'node:path'

const BLOCK = 512
const NAME_BYTES = 100
/** Eleven octal digits. */
const MAX_SIZE = 8 ** 11 - 1
const TYPES = { file: '0', symlink: '2', directory: '5' } as const

interface Owner {
  uid: number
  gid: number
}

export interface PackEntry extends Owner {
  name: string
  kind: keyof typeof TYPES
  /** Permission bits. */
  mode: number
  /** Bytes of the content that follows. */
  size?: number
  /** Unix seconds; absent: 0. */
  modifiedAt?: number
  /** Target of a link. */
  target?: string
}

/** Renders the header of an entry, after a pax header if a name or a size does not fit. */
export function tarHeader(entry: PackEntry): Buffer {
  const { name, size = 0, target = '' } = entry
  const fields: string[] = []
  if (Buffer.byteLength(name) > NAME_BYTES) fields.push(paxField('path', name))
  if (Buffer.byteLength(target) > NAME_BYTES) fields.push(paxField('linkpath', target))
  if (size > MAX_SIZE) fields.push(paxField('size', String(size)))
  const plain = rawHeader(entry, TYPES[entry.kind], Math.min(size, MAX_SIZE))
  if (fields.length === 0) return plain
  const pax = Buffer.from(fields.join(''))
  const lead = rawHeader({ ...entry, name: 'pax', target: '', mode: 0o644 }, 'x', pax.length)
  return Buffer.concat([lead, pax, tarPadding(pax.length), plain])
}

export function tarPadding(size: number): Buffer {
  return Buffer.alloc((BLOCK - (size % BLOCK)) % BLOCK)
}

export const TAR_END: Readonly<Uint8Array> = new Uint8Array(2 * BLOCK)

/**
 * Packs a file or a tree under another name and owner. Modes are kept; links are stored as links and never followed. Sockets,
 * pipes and devices are skipped.
 */
export async function* packTree(source: string, name: string, owner: Owner): AsyncGenerator<Buffer, void, undefined> {
  const stats = await lstat(source)
  const entry = { name, mode: stats.mode & 0o7777, modifiedAt: stats.mtimeMs / 1000, ...owner }
  if (stats.isSymbolicLink()) {
    yield tarHeader({ ...entry, kind: 'symlink', target: await readlink(source) })
  } else if (stats.isDirectory()) {
    yield tarHeader({ ...entry, name: `${name}/`, kind: 'directory' })
    for (const child of (await readdir(source)).toSorted())
      yield* packTree(join(source, child), `${name}/${child}`, owner)
  } else if (stats.isFile()) {
    yield tarHeader({ ...entry, kind: 'file', size: stats.size })
    let written = 0
    // A file that grows meanwhile is cut at its first size; a file that shrinks is an error.
    if (stats.size > 0)
      for await (const chunk of createReadStream(source, { end: stats.size - 1 }) as AsyncIterable<Buffer>) {
        written += chunk.length
        yield chunk
      }
    if (written !== stats.size) throw new Error(`${source} became shorter while it was read`)
    yield tarPadding(stats.size)
  }
}

function rawHeader(entry: PackEntry, type: string, size: number): Buffer {
  const header = Buffer.alloc(BLOCK)
  Buffer.from(entry.name).copy(header, 0, 0, NAME_BYTES)
  header.write(octal(entry.mode, 8), 100)
  header.write(octal(entry.uid, 8), 108)
  header.write(octal(entry.gid, 8), 116)
  header.write(octal(size, 12), 124)
  header.write(octal(Math.max(0, Math.floor(entry.modifiedAt ?? 0)), 12), 136)
  header.write(' '.repeat(8), 148)
  header.write(type, 156)
  Buffer.from(entry.target ?? '').copy(header, 157, 0, NAME_BYTES)
  header.write('ustar\u000000', 257)
  header.write(
    octal(
      header.reduce((sum, byte) => sum + byte, 0),
      8,
    ),
    148,
  )
  return header
}

function octal(value: number, width: number): string {
  return `${value.toString(8).padStart(width - 1, '0')}\0`
}

/** The length prefix counts its own digits. */
function paxField(key: string, value: string): string {
  const rest = Buffer.byteLength(` ${key}=${value}\n`)
  let length = rest + String(rest).length
  if (String(length).length + rest !== length) length += 1
  return `${length} ${key}=${value}\n`
}
