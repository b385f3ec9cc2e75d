import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { AttackTitle } from './attack.ts'

/** The columns of the table, in order. */
export const RUNTIME_NAMES = ['bubblewrap', 'Podman', 'Apptainer'] as const
export type RuntimeName = (typeof RUNTIME_NAMES)[number]

/** Result of one attack on one runtime. */
export interface AttackResult extends AttackTitle {
  result: 'holds' | 'succeeds' | 'does not apply'
  /** Why an attack does not apply. */
  reason?: string
}

const root = fileURLToPath(new URL('../../..', import.meta.url))

export function resultsFile(name: RuntimeName): string {
  return join(root, '.polar', 'attacks', `${name.toLowerCase()}.json`)
}

/**
 * Stores the results of a run. A run of some attacks replaces only their results; results of attacks that the catalogue no
 * longer contains are dropped. `ids`: the catalogue, in its order.
 */
export async function saveResults(
  name: RuntimeName,
  results: readonly AttackResult[],
  ids: readonly string[],
): Promise<void> {
  const file = resultsFile(name)
  const known = new Map((await loadResults(name).catch(() => [])).map((result) => [result.id, result]))
  for (const result of results) known.set(result.id, result)
  await mkdir(dirname(file), { recursive: true })
  await writeFile(
    file,
    `${JSON.stringify(
      ids.flatMap((id) => known.get(id) ?? []),
      undefined,
      2,
    )}\n`,
  )
}

export async function loadResults(name: RuntimeName): Promise<AttackResult[]> {
  return JSON.parse(await readFile(resultsFile(name), 'utf8')) as AttackResult[]
}
