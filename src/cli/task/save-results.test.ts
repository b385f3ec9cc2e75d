import { mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { Client } from '../../client/client.ts'
import { saveResults } from './save-results.ts'

let dir: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-results-'))
})
afterEach(() => rm(dir, { recursive: true, force: true }))

/** Serves five results; `cut` closes the connection after this many. */
function serverOf(cut = Infinity): { client: Client; skips: number[] } {
  const skips: number[] = []
  async function* streamTaskResults({ query }: { query: { skip: number } }) {
    skips.push(query.skip)
    for (let i = query.skip; i < 5; i++) {
      if (i >= cut) throw new Error('cut')
      yield { session_id: `s${i}` }
    }
  }
  return { client: { streamTaskResults } as unknown as Client, skips }
}

const options = () => ({ dir, follow: false, signal: new AbortController().signal })

test('saveResults() renames the complete file, and requests each result once', async () => {
  const broken = serverOf(2)
  await expect(saveResults(broken.client, 'a/b', options())).rejects.toThrow('cut')
  expect(await readdir(dir)).toEqual(['a%2Fb.jsonl.part'])
  // A killed process leaves a partial line.
  await writeFile(join(dir, 'a%2Fb.jsonl.part'), '{"session', { flag: 'a' })
  const whole = serverOf()
  expect(await saveResults(whole.client, 'a/b', options())).toEqual({ file: join(dir, 'a%2Fb.jsonl'), results: 5 })
  expect(whole.skips).toEqual([2])
  expect(await readFile(join(dir, 'a%2Fb.jsonl'), 'utf8')).toBe(
    [0, 1, 2, 3, 4].map((i) => `{"session_id":"s${i}"}\n`).join(''),
  )
})

test('saveResults() creates no file for an unknown task', async () => {
  await expect(saveResults(serverOf(0).client, 'x', { ...options(), dir: join(dir, 'new') })).rejects.toThrow('cut')
  expect(await readdir(dir)).toEqual([])
})
