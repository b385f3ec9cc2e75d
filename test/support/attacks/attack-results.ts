import { mkdir, readFile, writeFile } from 'node:fs/promises'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import type { AttackTitle } from './attack.ts'

/** The columns of the table, in order. */
export const RUNTIME_NAMES = ['bubblewrap', 'Podman', 'Apptainer'] as const
export type RuntimeName = (typeof RUNTIME_NAMES)[number]

/** What became of one attack on one runtime. */
export interface AttackResult extends AttackTitle {
  result: 'holds' | 'succeeds' | 'does not apply'
  /** Why an attack does not apply. */
  reason?: string
}

const root = fileURLToPath(new URL('../../..', import.meta.url))

export function resultsFile(name: RuntimeName): string {
  return join(root, '.polar', 'attacks', `${name.toLowerCase()}.json`)
}

export async function saveResults(name: RuntimeName, results: readonly AttackResult[]): Promise<void> {
  const file = resultsFile(name)
  await mkdir(dirname(file), { recursive: true })
  await writeFile(file, `${JSON.stringify(results, undefined, 2)}\n`)
}

export async function loadResults(name: RuntimeName): Promise<AttackResult[]> {
  return JSON.parse(await readFile(resultsFile(name), 'utf8')) as AttackResult[]
}
