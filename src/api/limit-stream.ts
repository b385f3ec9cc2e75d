/** Fails with an error after `maxBytes`. */
export function limitStream(
  stream: ReadableStream<Uint8Array>,
  maxBytes: number,
  toError: () => Error,
): ReadableStream<Uint8Array> {
  let bytes = 0
  return stream.pipeThrough(
    new TransformStream<Uint8Array, Uint8Array>({
      transform(chunk, controller) {
        bytes += chunk.length
        if (bytes > maxBytes) controller.error(toError())
        else controller.enqueue(chunk)
      },
    }),
  )
}

export async function readAll(stream: ReadableStream<Uint8Array>): Promise<Buffer<ArrayBuffer>> {
  const chunks: Uint8Array[] = []
  for await (const chunk of stream) chunks.push(chunk)
  return Buffer.concat(chunks)
}
