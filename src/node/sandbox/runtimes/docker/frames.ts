export interface OutputFrame {
  stream: 'stdout' | 'stderr'
  data: Buffer
}

const HEADER_BYTES = 8
const STREAMS: Readonly<Record<number, OutputFrame['stream']>> = { 1: 'stdout', 2: 'stderr' }

/**
 * Parses the output of a command as the engine sends it: eight bytes (stream, three zeros, length) before each piece.
 * Yields parts of a piece as they arrive, so that a long piece is never held in memory.
 */
export async function* readFrames(source: AsyncIterable<Buffer>): AsyncGenerator<OutputFrame, void, undefined> {
  let header = Buffer.alloc(0)
  let stream: OutputFrame['stream'] | undefined
  let left = 0
  for await (const chunk of source) {
    let rest = chunk
    while (rest.length > 0) {
      if (left === 0) {
        const part = rest.subarray(0, HEADER_BYTES - header.length)
        header = Buffer.concat([header, part])
        rest = rest.subarray(part.length)
        if (header.length < HEADER_BYTES) continue
        stream = STREAMS[header[0] ?? 0]
        left = header.readUInt32BE(4)
        header = Buffer.alloc(0)
        continue
      }
      const data = rest.subarray(0, left)
      left -= data.length
      rest = rest.subarray(data.length)
      if (stream !== undefined) yield { stream, data }
    }
  }
}
