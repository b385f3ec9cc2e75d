import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { CampaignJournal, type Decision } from './campaign-journal.ts'

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-journal-'))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

function open(name: string, { fingerprint = 'same', now = 0 } = {}): Promise<CampaignJournal> {
  return CampaignJournal.open(join(dir, name), { fingerprint, newId: () => 'run_1', now })
}

function decisionOf(number: number): Decision {
  const tokens = { sampled: 1, trained: 1 }
  return {
    entry: 'decision',
    at: number * 1000,
    sessionId: `ses_${number}`,
    taskId: 'é',
    verdict: 'accepted',
    turns: 1,
    tokens,
  }
}

async function write(name: string, decisions: readonly Decision[], now = 0): Promise<void> {
  await using journal = await open(name, { now })
  for (const decision of decisions) await journal.append(decision)
}

test('a journal that was cut at any byte continues with its complete lines', async () => {
  const decisions = [1, 2, 3].map(decisionOf)
  await write('whole', decisions)
  const bytes = await readFile(join(dir, 'whole'))
  const ends = [...bytes.entries()].flatMap(([at, byte]) => (byte === 10 ? [at + 1] : []))
  for (let length = 0; length <= bytes.length; length++) {
    await writeFile(join(dir, 'cut'), bytes.subarray(0, length))
    await write('cut', [decisionOf(9)])
    await using journal = await open('cut')
    const complete = Math.max(0, ends.filter((end) => end <= length).length - 2)
    expect(journal.decisions).toEqual([...decisions.slice(0, complete), decisionOf(9)])
    expect(journal.runId).toBe('run_1')
  }
})

test('elapsedMs counts the time of each process up to its last decision', async () => {
  await write('times', [decisionOf(1), decisionOf(4)])
  await write('times', [decisionOf(102)], 100_000)
  await using journal = await open('times', { now: 500_000 })
  expect(journal.elapsedMs).toBe(6000)
})

test('a journal of other tasks or rules is rejected', async () => {
  await write('other', [])
  await expect(open('other', { fingerprint: 'different' })).rejects.toMatchObject({ code: 'config.invalid' })
})

test('a journal with a damaged line is rejected', async () => {
  await write('damaged', [decisionOf(1)])
  const text = await readFile(join(dir, 'damaged'), 'utf8')
  await writeFile(join(dir, 'damaged'), text.replace('"entry":"start"', '"entry":"?"'))
  await expect(open('damaged')).rejects.toMatchObject({ code: 'store.corrupt' })
})
