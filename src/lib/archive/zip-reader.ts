import { inflateRawSync } from 'node:zlib'

export interface ZipEntry {
  name: string
  /** Unpacked bytes, as the archive states. */
  size: number
  /** Throws if the content does not match the archive's directory. */
  read(): Buffer
}

const END = 0x06_05_4b_50
const CENTRAL = 0x02_01_4b_50
const LOCAL = 0x04_03_4b_50
const [STORED, DEFLATED] = [0, 8]

/**
 * Lists the files of a ZIP archive in memory. Supports neither encryption nor ZIP64, which is for more than 4 GB or 65 535
 * files. Names are not checked: a caller that extracts files must reject paths that leave the target folder.
 */
export function readZip(archive: Buffer): ZipEntry[] {
  const end = findEnd(archive)
  const count = archive.readUInt16LE(end + 10)
  let at = archive.readUInt32LE(end + 16)
  const entries: ZipEntry[] = []
  for (let i = 0; i < count; i++) {
    if (archive.readUInt32LE(at) !== CENTRAL) throw new Error('Not a ZIP archive, or damaged.')
    const method = archive.readUInt16LE(at + 10)
    const [packed, size] = [archive.readUInt32LE(at + 20), archive.readUInt32LE(at + 24)]
    const [nameLength, extraLength] = [archive.readUInt16LE(at + 28), archive.readUInt16LE(at + 30)]
    const start = archive.readUInt32LE(at + 42)
    const name = archive.toString('utf8', at + 46, at + 46 + nameLength)
    entries.push({ name, size, read: () => unpack(archive, { name, method, start, packed, size }) })
    at += 46 + nameLength + extraLength + archive.readUInt16LE(at + 32)
  }
  return entries
}

/** The end record is last, before a comment of any length. */
function findEnd(archive: Buffer): number {
  for (let at = archive.length - 22; at >= Math.max(0, archive.length - 22 - 0xff_ff); at--) {
    if (archive.readUInt32LE(at) === END) return at
  }
  throw new Error('Not a ZIP archive, or truncated.')
}

function unpack(
  archive: Buffer,
  { name, method, start, packed, size }: { name: string; method: number; start: number; packed: number; size: number },
): Buffer {
  if (archive.readUInt32LE(start) !== LOCAL)
    throw new Error(`The entry ${name} is not at the offset that the archive states.`)
  const from = start + 30 + archive.readUInt16LE(start + 26) + archive.readUInt16LE(start + 28)
  const data = archive.subarray(from, from + packed)
  if (method !== STORED && method !== DEFLATED) throw new Error(`The compression method of ${name} is not supported.`)
  // No more bytes than the archive states are unpacked.
  const content = method === STORED ? data : inflateRawSync(data, { maxOutputLength: Math.max(1, size) })
  if (content.length !== size) throw new Error(`${name} has ${content.length} bytes, not ${size}.`)
  return content
}
