import { once } from 'node:events'
import type { Writable } from 'node:stream'
import type { Exporter } from '../exporters/exporter.ts'
import { nothingResumed, type ExportSink } from './sink.ts'

/**
 * Writes to a pipe or terminal. Cannot be resumed and does not close the stream. Rejects with the stream's error, such
 * as EPIPE.
 */
export function openStreamSink(exporter: Exporter, stream: Writable): ExportSink {
  const writer = exporter.open()
  let bytesWritten = 0
  let failure: Error | undefined
  const onError = (error: Error): void => {
    failure = error
  }
  stream.on('error', onError)

  const write = async (pieces: Iterable<string | Uint8Array>): Promise<void> => {
    for (const piece of pieces) {
      if (failure !== undefined) throw failure
      bytesWritten += Buffer.byteLength(piece)
      if (!stream.write(piece)) await once(stream, 'drain')
    }
  }

  return {
    resumed: nothingResumed,
    get bytesWritten() {
      return bytesWritten
    },
    add: (session) => write(writer.add(session)),
    async end() {
      await write(writer.end())
      // The callback of an empty write runs after all earlier writes.
      await new Promise<void>((resolve, reject) => {
        stream.write('', (error) => (error == null ? resolve() : reject(error)))
      })
    },
    async [Symbol.asyncDispose]() {
      stream.off('error', onError)
    },
  }
}
