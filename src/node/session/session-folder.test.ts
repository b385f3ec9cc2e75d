import { appendFile, mkdir, mkdtemp, readdir, readFile, rm, stat, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import type { SessionOrder } from '../../model/session-order.ts'
import type { SessionOutcome } from '../../model/session-outcome.ts'
import { TaskRequest } from '../../model/task.ts'
import { SessionFolder, type JournalEntry } from './session-folder.ts'

let dir: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-folders-'))
})
afterEach(() => rm(dir, { recursive: true, force: true }))

const task = TaskRequest.parse({ task_id: 'task', instruction: 'Do it.', agent: { harness: 'pi' } })

function orderOf(sessionId: string): SessionOrder {
  return { schemaVersion: 1, sessionId, attempt: 1, task }
}

function outcomeOf(sessionId: string): SessionOutcome {
  return {
    schemaVersion: 1,
    sessionId,
    taskId: 'task',
    attempt: 1,
    nodeId: 'node',
    status: 'COMPLETED',
    timing: {},
    artifacts: [],
    endedAt: 5,
  }
}

const begun: JournalEntry = { at: 1, attempt: 1, from: 'REGISTERED', to: 'INITIALIZING' }
const ready: JournalEntry = { at: 2, attempt: 1, from: 'INITIALIZING', to: 'READY' }

test('session spec, journal, grade and outcome are read as they were written', async () => {
  const folder = SessionFolder.of(dir, 'ses_1')
  const grade = {
    attempt: 1,
    ending: { kind: 'completed', exitCode: 0 } as const,
    grade: { outcome_reward: 0.5, metadata: {} },
  }
  await folder.writeOrder(orderOf('ses_1'))
  await folder.appendJournal(begun)
  await folder.appendJournal(ready)
  await folder.writeGrade(grade)
  await folder.writeOutcome(outcomeOf('ses_1'))
  expect(await folder.readOrder()).toEqual(orderOf('ses_1'))
  expect(await folder.readJournal()).toEqual([begun, ready])
  expect(await folder.readGrade()).toEqual(grade)
  expect(await folder.readOutcome()).toEqual(outcomeOf('ses_1'))
})

test('the folder contains only the four files, which only their owner can read', async () => {
  const folder = SessionFolder.of(dir, 'ses_1')
  await folder.writeOrder(orderOf('ses_1'))
  await folder.appendJournal(begun)
  await folder.writeOutcome(outcomeOf('ses_1'))
  const names = await readdir(folder.path)
  expect(names.toSorted()).toEqual(['journal.jsonl', 'order.json', 'outcome.json'])
  for (const name of names) expect((await stat(join(folder.path, name))).mode & 0o077).toBe(0)
  expect((await stat(folder.path)).mode & 0o077).toBe(0)
})

test('readJournal() skips an incomplete last line', async () => {
  const folder = SessionFolder.of(dir, 'ses_1')
  await folder.writeOrder(orderOf('ses_1'))
  await folder.appendJournal(begun)
  await appendFile(join(folder.path, 'journal.jsonl'), JSON.stringify(ready).slice(0, 20))
  expect(await folder.readJournal()).toEqual([begun])
})

test('readJournal() skips a line that a full disk cut, and reads all later lines', async () => {
  const folder = SessionFolder.of(dir, 'ses_1')
  await folder.writeOrder(orderOf('ses_1'))
  await appendFile(join(folder.path, 'journal.jsonl'), JSON.stringify(begun).slice(0, 20))
  await folder.appendJournal(begun)
  await folder.appendJournal(ready)
  expect(await folder.readJournal()).toEqual([ready])
})

test('readJournal() is empty and readGrade() undefined without files', async () => {
  const folder = SessionFolder.of(dir, 'ses_1')
  await folder.writeOrder(orderOf('ses_1'))
  expect(await folder.readJournal()).toEqual([])
  expect(await folder.readGrade()).toBeUndefined()
})

test('writeOutcome() replaces the file atomically', async () => {
  const folder = SessionFolder.of(dir, 'ses_1')
  const [short, long] = [outcomeOf('ses_1'), { ...outcomeOf('ses_1'), nodeId: 'n'.repeat(100_000) }]
  await folder.writeOrder(orderOf('ses_1'))
  await folder.writeOutcome(short)
  const writes = (async () => {
    for (let n = 0; n < 20; n++) await folder.writeOutcome(n % 2 === 0 ? long : short)
  })()
  const lengths = new Set<number>()
  let isOver = false
  void writes.finally(() => (isOver = true))
  while (!isOver) lengths.add((await folder.readOutcome()).nodeId.length)
  await writes
  for (const length of lengths) expect([short.nodeId.length, long.nodeId.length]).toContain(length)
  expect((await readdir(folder.path)).toSorted()).toEqual(['order.json', 'outcome.json'])
})

test('unfinished() returns sessions with a spec and without an outcome, and ignores other folders', async () => {
  await SessionFolder.of(dir, 'ses_open').writeOrder(orderOf('ses_open'))
  const ended = SessionFolder.of(dir, 'ses_ended')
  await ended.writeOrder(orderOf('ses_ended'))
  await ended.writeOutcome(outcomeOf('ses_ended'))
  await mkdir(join(dir, 'recorded-without-a-node'))
  await writeFile(join(dir, 'notes.txt'), '')
  await mkdir(join(dir, '.hidden'))
  expect((await SessionFolder.unfinished(dir)).map(({ path }) => path)).toEqual([join(dir, 'ses_open')])
  expect(await SessionFolder.unfinished(join(dir, 'nowhere'))).toEqual([])
})

test('hasEnded() ignores a draft of a crashed process', async () => {
  const folder = SessionFolder.of(dir, 'ses_1')
  await folder.writeOrder(orderOf('ses_1'))
  await writeFile(join(folder.path, '.outcome.json.half'), '{"schemaVersion":')
  expect(await SessionFolder.unfinished(dir)).toHaveLength(1)
})

test('readOrder() throws store.corrupt with the path of a damaged file', async () => {
  const folder = SessionFolder.of(dir, 'ses_1')
  await folder.writeOrder(orderOf('ses_1'))
  await writeFile(join(folder.path, 'order.json'), '{"schemaVersion": 2}')
  await expect(folder.readOrder()).rejects.toMatchObject({ code: 'store.corrupt' })
  await expect(folder.readOrder()).rejects.toThrow(join(folder.path, 'order.json'))
  expect(await readFile(join(folder.path, 'order.json'), 'utf8')).toContain('2')
})

test.each(['../elsewhere', 'a/b', '', '.', '..'])('of() rejects the session id %j', (id) => {
  expect(() => SessionFolder.of(dir, id)).toThrow('is not a valid session id')
})

test('removeEmpty() removes only folders without a session spec', async () => {
  await SessionFolder.of(dir, 'ses_ordered').writeOrder(orderOf('ses_ordered'))
  await mkdir(join(dir, 'ses_cut'))
  await writeFile(join(dir, 'ses_cut', '.order.json.1'), '{')
  await mkdir(join(dir, 'ses_recorded'))
  await writeFile(join(dir, 'ses_recorded', 'calls.plog'), '')
  await SessionFolder.removeEmpty(dir)
  expect((await readdir(dir)).toSorted()).toEqual(['ses_ordered', 'ses_recorded'])
})
