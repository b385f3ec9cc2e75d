const MAGIC = 0xfd2fb528
const SKIPPABLE = 0x184d2a50
const RLE = 1
const DICTIONARY_BYTES = [0, 1, 2, 4]
const LENGTH_BYTES = [0, 2, 4, 8]

/**
 * Whether the bytes are complete zstd frames. Node's encoder sometimes appends an empty frame. Node's decoder does not report
 * a truncated frame after the first; other decoders reject it. Reads only lengths (RFC 8878, section 3.1).
 */
export function endsWithZstdFrame(bytes: Uint8Array): boolean {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength)
  let at = 0
  do {
    if (at + 8 > bytes.length) return false
    const magic = view.getUint32(at, true)
    // Sixteen magic numbers for skippable frames.
    if ((magic & ~0xf) === SKIPPABLE) at += 8 + view.getUint32(at + 4, true)
    else if (magic === MAGIC) at = endOfFrame(view, at + 4)
    else return false
  } while (at < bytes.length)
  return at === bytes.length
}

/** Beyond the end of the bytes if the frame is truncated. */
function endOfFrame(view: DataView, start: number): number {
  const descriptor = view.getUint8(start)
  const isSingleSegment = (descriptor & 0x20) !== 0
  const lengthBytes = LENGTH_BYTES[descriptor >> 6]! || (isSingleSegment ? 1 : 0)
  let at = start + 1 + (isSingleSegment ? 0 : 1) + DICTIONARY_BYTES[descriptor & 3]! + lengthBytes
  for (;;) {
    if (at + 3 > view.byteLength) return Infinity
    const header = view.getUint16(at, true) | (view.getUint8(at + 2) << 16)
    const isRepeated = ((header >> 1) & 3) === RLE
    at += 3 + (isRepeated ? 1 : header >> 3)
    if ((header & 1) === 1) return at + ((descriptor & 4) === 0 ? 0 : 4)
  }
}
