import { createInterface } from 'node:readline'
import { onAbort } from '../../../../lib/async/until-aborted.ts'
import type { SpawnedProcess } from './spawner.ts'

/** Time limit for the start of a sandbox, or of a namespace in it. */
export const START_MS = 30_000

/** Waits until the program has printed a line with each word. Returns what follows the words. */
export function readyLines<Word extends string>(
  child: SpawnedProcess,
  words: readonly Word[],
  signal: AbortSignal,
): Promise<Record<Word, string>> {
  return new Promise((resolve, reject) => {
    const found = new Map<string, string>()
    let stderr = ''
    child.stderr!.setEncoding('utf8').on('data', (text: string) => (stderr = (stderr + text).slice(-2000)))
    createInterface({ input: child.stdout! }).on('line', (line) => {
      const [word = '', rest = ''] = line.split(' ')
      found.set(word, rest)
      if (words.every((each) => found.has(each))) resolve(Object.fromEntries(found) as Record<Word, string>)
    })
    child.once('error', reject)
    child.once('close', () => reject(new Error(stderr.trim() || 'the process ended without a message')))
    onAbort(signal, () => reject(new Error('no response in time')))
  })
}

export function untilExit(child: SpawnedProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return Promise.resolve()
  return new Promise((resolve) => child.once('exit', () => resolve()))
}
