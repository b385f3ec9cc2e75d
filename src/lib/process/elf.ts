import { open, type FileHandle } from 'node:fs/promises'

/** What a Linux program requires of its machine. */
export interface ElfNeeds {
  /** Loader, such as `/lib64/ld-linux-x86-64.so.2`; absent in a static program or a library. */
  interpreter?: string
  /** Names of libraries. */
  libraries: string[]
  /** Required version of glibc; absent without glibc. */
  glibc?: string
}

/** Undefined for a file that is not a 64-bit little-endian ELF file. */
export async function readElfNeeds(path: string): Promise<ElfNeeds | undefined> {
  await using file = await open(path)
  const header = await readAt(file, 0, 64)
  if (header.length < 64 || header.readUInt32BE(0) !== MAGIC || header[4] !== 2 || header[5] !== 1) return undefined
  const segments = await readSegments(file, header)
  const interp = segments.find(({ type }) => type === PT_INTERP)
  const interpreter =
    interp && (await readAt(file, interp.offset, interp.size)).toString('latin1').replace(/\0.*$/s, '')
  const strings = await readDynamicStrings(file, segments)
  return { ...(interpreter === undefined ? {} : { interpreter }), ...strings }
}

const MAGIC = 0x7f_45_4c_46
const [PT_LOAD, PT_DYNAMIC, PT_INTERP] = [1, 2, 3]
const [DT_NEEDED, DT_STRTAB, DT_STRSZ] = [1, 5, 10]

interface Segment {
  type: number
  offset: number
  address: number
  size: number
}

async function readSegments(file: FileHandle, header: Buffer): Promise<Segment[]> {
  const [at, size, count] = [Number(header.readBigUInt64LE(32)), header.readUInt16LE(54), header.readUInt16LE(56)]
  const table = await readAt(file, at, size * count)
  return Array.from({ length: Math.floor(table.length / size) }, (_, i) => ({
    type: table.readUInt32LE(i * size),
    offset: Number(table.readBigUInt64LE(i * size + 8)),
    address: Number(table.readBigUInt64LE(i * size + 16)),
    size: Number(table.readBigUInt64LE(i * size + 32)),
  }))
}

async function readDynamicStrings(
  file: FileHandle,
  segments: readonly Segment[],
): Promise<Pick<ElfNeeds, 'libraries' | 'glibc'>> {
  const dynamic = segments.find(({ type }) => type === PT_DYNAMIC)
  if (dynamic === undefined) return { libraries: [] }
  const table = await readAt(file, dynamic.offset, dynamic.size)
  const entries = Array.from({ length: Math.floor(table.length / 16) }, (_, i) => ({
    tag: Number(table.readBigInt64LE(i * 16)),
    value: Number(table.readBigUInt64LE(i * 16 + 8)),
  }))
  const address = entries.find(({ tag }) => tag === DT_STRTAB)?.value ?? 0
  const size = entries.find(({ tag }) => tag === DT_STRSZ)?.value ?? 0
  const home = segments.find(
    (segment) => segment.type === PT_LOAD && address >= segment.address && address < segment.address + segment.size,
  )
  if (home === undefined) return { libraries: [] }
  const strings = await readAt(file, home.offset + address - home.address, size)
  const libraries = entries.filter(({ tag }) => tag === DT_NEEDED).map(({ value }) => stringAt(strings, value))
  const glibc = newestGlibc(strings.toString('latin1'))
  return { libraries: libraries.sort(), ...(glibc === undefined ? {} : { glibc }) }
}

function stringAt(strings: Buffer, at: number): string {
  return strings.toString('latin1', at, strings.indexOf(0, at))
}

/** The string table has the versions that symbols are bound to. */
function newestGlibc(strings: string): string | undefined {
  const versions = [...strings.matchAll(/\0GLIBC_(\d+)\.(\d+)/g)].map(([, major, minor]) => [
    Number(major),
    Number(minor),
  ])
  const [newest] = versions.sort(([a = 0, b = 0], [c = 0, d = 0]) => c - a || d - b)
  return newest?.join('.')
}

async function readAt(file: FileHandle, position: number, length: number): Promise<Buffer> {
  const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, position)
  return buffer.subarray(0, bytesRead)
}
