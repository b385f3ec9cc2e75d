import { inflateRawSync } from 'node:zlib'

export interface ZipEntry {
  name: string
  /** Bytes when unpacked, as the archive says. */
  size: number
  /** Throws when the content is not what the archive says. */
  read(): Buffer
}

const END = 0x06_05_4b_50
const CENTRAL = 0x02_01_4b_50
const LOCAL = 0x04_03_4b_50
const [STORED, DEFLATED] = [0, 8]

/**
 * The files of a ZIP archive that is in memory, in its order. Neither encryption nor the 64-bit form, for more than 4 GB or
 * 65 535 files. Names are as they stand there: whoever writes them somewhere looks at where they lead.
 */
export function readZip(archive: Buffer): ZipEntry[] {
  const end = findEnd(archive)
  const count = archive.readUInt16LE(end + 10)
  let at = archive.readUInt32LE(end + 16)
  const entries: ZipEntry[] = []
  for (let i = 0; i < count; i++) {
    if (archive.readUInt32LE(at) !== CENTRAL) throw new Error('It is no ZIP archive, or is damaged.')
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

/** It stands last, before a comment of any length. */
function findEnd(archive: Buffer): number {
  for (let at = archive.length - 22; at >= Math.max(0, archive.length - 22 - 0xff_ff); at--) {
    if (archive.readUInt32LE(at) === END) return at
  }
  throw new Error('It is no ZIP archive, or was cut off.')
}

function unpack(
  archive: Buffer,
  { name, method, start, packed, size }: { name: string; method: number; start: number; packed: number; size: number },
): Buffer {
  if (archive.readUInt32LE(start) !== LOCAL) throw new Error(`${name} is not where the archive says.`)
  const from = start + 30 + archive.readUInt16LE(start + 26) + archive.readUInt16LE(start + 28)
  const data = archive.subarray(from, from + packed)
  if (method !== STORED && method !== DEFLATED) throw new Error(`${name} is packed in a way that is not known here.`)
  // More than the archive says is not unpacked.
  const content = method === STORED ? data : inflateRawSync(data, { maxOutputLength: Math.max(1, size) })
  if (content.length !== size) throw new Error(`${name} has ${content.length} bytes, not ${size}.`)
  return content
}
