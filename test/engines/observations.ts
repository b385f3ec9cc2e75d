import { existsSync, readFileSync, writeFileSync } from 'node:fs'
import { fileURLToPath } from 'node:url'
import * as z from 'zod'

/** What a run of `npm run test:engines` saw; docs/engines.md has a table of it. */
export const OBSERVED_FILE = fileURLToPath(new URL('observed.json', import.meta.url))

const Observed = z.strictObject({
  /** ISO date of the run. */
  date: z.string(),
  version: z.string(),
  /** Row of the table to what was seen. */
  seen: z.record(z.string(), z.string()),
})
const ObservedFile = z.record(z.string(), Observed)
export type Observed = z.infer<typeof Observed>

export function readObserved(): Record<string, Observed> {
  return existsSync(OBSERVED_FILE) ? ObservedFile.parse(JSON.parse(readFileSync(OBSERVED_FILE, 'utf8'))) : {}
}

/** Collects what was seen of one engine, and writes it into the file at the end. Rows of an earlier run are kept. */
export class Observations {
  readonly #engine: string
  readonly #seen: Record<string, string> = {}
  version = 'unknown'

  constructor(engine: string) {
    this.#engine = engine
  }

  add(row: string, value: string): void {
    this.#seen[row] = value
  }

  save(): void {
    const all = readObserved()
    const seen = { ...all[this.#engine]?.seen, ...this.#seen }
    const date = new Date().toISOString().slice(0, 10)
    const merged = { ...all, [this.#engine]: { date, version: this.version, seen: sorted(seen) } }
    writeFileSync(OBSERVED_FILE, `${JSON.stringify(sorted(merged), null, 2)}\n`)
  }
}

function sorted<T>(record: Readonly<Record<string, T>>): Record<string, T> {
  return Object.fromEntries(Object.entries(record).toSorted(([one], [other]) => (one < other ? -1 : 1)))
}
