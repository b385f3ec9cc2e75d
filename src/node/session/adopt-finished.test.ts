import { mkdirSync, mkdtempSync, readFileSync, readdirSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pino from 'pino'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { adoptFinished } from './adopt-finished.ts'
import { pastFolder, SessionFolder, sessionsFolder } from './session-folder.ts'

const logger = pino({ level: 'silent' })
let dir: string
beforeEach(() => {
  dir = mkdtempSync(join(tmpdir(), 'polar-adopt-'))
})
afterEach(() => rmSync(dir, { recursive: true, force: true }))

/** Writes the files of a session that adoptFinished() reads. */
function lay(turn: string, id: string, { hasEnded = true }: { hasEnded?: boolean } = {}): SessionFolder {
  const folder = SessionFolder.of(sessionsFolder(join(dir, turn)), id)
  mkdirSync(folder.artifacts, { recursive: true })
  writeFileSync(join(folder.path, 'order.json'), '{"attempt":3}')
  writeFileSync(folder.result, 'result')
  writeFileSync(join(folder.artifacts, 'log'), 'log')
  writeFileSync(join(folder.path, 'lock'), 'of a process that is not us')
  if (hasEnded) writeFileSync(join(folder.path, 'outcome.json'), '{}')
  return folder
}

const adopt = (turn: string, ...earlier: string[]): Promise<number> =>
  adoptFinished(
    earlier.map((name) => join(dir, name)),
    join(dir, turn),
    logger,
  )

const sessionsIn = (turn: string): string[] => readdirSync(sessionsFolder(join(dir, turn))).sort()

test('adoptFinished() copies all files of ended sessions, and no other session', async () => {
  lay('0', 'ses_ended')
  lay('0', 'ses_running', { hasEnded: false })
  expect(await adopt('1', '0')).toBe(1)
  expect(sessionsIn('1')).toEqual(['ses_ended'])
  const copy = SessionFolder.of(sessionsFolder(join(dir, '1')), 'ses_ended')
  expect(readFileSync(copy.result, 'utf8')).toBe('result')
  expect(readFileSync(join(copy.artifacts, 'log'), 'utf8')).toBe('log')
  expect(readdirSync(copy.path)).not.toContain('lock')
})

test('adoptFinished() does not change the earlier folder, whose process may still run', async () => {
  const folder = lay('0', 'ses_a')
  await adopt('1', '0')
  expect(readFileSync(folder.result, 'utf8')).toBe('result')
  expect(readFileSync(join(folder.path, 'lock'), 'utf8')).toContain('not us')
  await expect(folder.archive(pastFolder(join(dir, '0')), 3)).resolves.toBeDefined()
})

test('adoptFinished() copies a session once, from the process that copied it last', async () => {
  lay('0', 'ses_a')
  lay('1', 'ses_b')
  await adopt('1', '0')
  expect(await adopt('1', '0')).toBe(0)
  // The second process delivers one of the two and dies.
  await SessionFolder.of(sessionsFolder(join(dir, '1')), 'ses_b').archive(pastFolder(join(dir, '1')), 3)
  expect(await adopt('2', '0', '1')).toBe(1)
  expect(sessionsIn('2')).toEqual(['ses_a'])
})

test('adoptFinished() ignores folders that do not exist', async () => {
  expect(await adopt('1', '0', 'nowhere')).toBe(0)
})
