import { createHash } from 'node:crypto'
import { CHUNK_TOKENS } from './reading-plan.ts'

interface Candidate {
  readonly load: number
}

/** Maximum additional tasks of a worker that is preferred for its cache. */
const PATIENCE = 2
const REMEMBERED_PREFIXES = 1024

/** Routes a prompt to a worker that has cached the same first chunk, unless another worker is much less busy. */
export class PrefixRouter<W extends Candidate> {
  readonly #readers = new Map<string, Set<W>>()

  choose(promptIds: Int32Array, workers: readonly W[]): W | undefined {
    const idlest = leastLoaded(workers)
    // A prompt of one chunk cannot be cached.
    if (idlest === undefined || promptIds.length <= CHUNK_TOKENS) return idlest
    const prefix = nameOf(promptIds.subarray(0, CHUNK_TOKENS))
    const readers = this.#readers.get(prefix) ?? new Set()
    const reader = leastLoaded(workers.filter((worker) => readers.has(worker)))
    const chosen = reader !== undefined && reader.load < idlest.load + PATIENCE ? reader : idlest
    this.#remember(prefix, readers.add(chosen))
    return chosen
  }

  /** Forgets the cache of a worker that ended. */
  forget(worker: W): void {
    for (const readers of this.#readers.values()) readers.delete(worker)
  }

  #remember(prefix: string, readers: Set<W>): void {
    this.#readers.delete(prefix)
    this.#readers.set(prefix, readers)
    const [oldest] = this.#readers.keys()
    if (this.#readers.size > REMEMBERED_PREFIXES && oldest !== undefined) this.#readers.delete(oldest)
  }
}

function leastLoaded<W extends Candidate>(workers: readonly W[]): W | undefined {
  return workers.reduce<W | undefined>(
    (best, worker) => (best === undefined || worker.load < best.load ? worker : best),
    undefined,
  )
}

function nameOf(ids: Int32Array): string {
  return createHash('sha256')
    .update(new Uint8Array(ids.buffer, ids.byteOffset, ids.byteLength))
    .digest('base64')
}
