import type { ModelShape } from '../model-package.ts'

/**
 * Key-values of the tokens that a model has read. Immutable, so that sequences with a common prefix can share them.
 */
export interface KeyValues {
  /** Tokens read. */
  readonly length: number
  /** Keys and values of each layer in turn, each laid out as [head, token, element]. */
  readonly tensors: readonly Float32Array[]
}

export function emptyKeyValues(shape: ModelShape): KeyValues {
  return { length: 0, tensors: Array.from({ length: 2 * shape.layers }, () => new Float32Array(0)) }
}

/** Copies the part from token `from` on. */
export function sliceKeyValues({ length, tensors }: KeyValues, from: number, heads: number): KeyValues {
  const slice = (source: Float32Array) => {
    const stride = source.length / heads
    const kept = (stride / length) * (length - from)
    const part = new Float32Array(heads * kept)
    for (let head = 0; head < heads; head++) {
      part.set(source.subarray((head + 1) * stride - kept, (head + 1) * stride), head * kept)
    }
    return part
  }
  return { length: length - from, tensors: tensors.map(slice) }
}

/** Concatenates parts. */
export function joinKeyValues(parts: readonly KeyValues[], heads: number): KeyValues {
  const join = (pieces: readonly Float32Array[]) => {
    const joined = new Float32Array(pieces.reduce((sum, piece) => sum + piece.length, 0))
    let at = 0
    for (let head = 0; head < heads; head++) {
      for (const piece of pieces) {
        const stride = piece.length / heads
        joined.set(piece.subarray(head * stride, (head + 1) * stride), at)
        at += stride
      }
    }
    return joined
  }
  return {
    length: parts.reduce((sum, part) => sum + part.length, 0),
    tensors: (parts[0]?.tensors ?? []).map((_, i) => join(parts.map((part) => part.tensors[i]!))),
  }
}

export function byteLengthOf({ tensors }: KeyValues): number {
  return tensors.reduce((sum, tensor) => sum + tensor.byteLength, 0)
}
