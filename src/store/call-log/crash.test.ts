import { execFile, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { promisify } from 'node:util'
import { expect, test } from 'vitest'
import { inScratch, OPENING } from '../store.contract.ts'
import { createCallLogReader } from './reader.ts'
import { createCallLogStore } from './store.ts'

const PRELUDE = `
  import { writeSync } from 'node:fs'
  import { createCallLogStore } from ${JSON.stringify(new URL('store.ts', import.meta.url))}
  import { createCallLogReader } from ${JSON.stringify(new URL('reader.ts', import.meta.url))}
  const print = (value) => writeSync(1, JSON.stringify(value) + '\\n')
  const endOf = (turnId, sampled) => {
    const ids = Int32Array.from({ length: sampled }, (_, n) => n * 7)
    const logprobs = new Float32Array(sampled).fill(-0.5)
    const message = { role: 'assistant', content: [], toolCalls: [] }
    const choices = [{ index: 0, message, finishReason: 'stop', ids, logprobs }]
    const response = { id: turnId, model: 'm', created: 1, promptIds: ids, choices, grade: 'exact', gradeReasons: [] }
    return { turnId, endedAt: 2, forced: {}, response }
  }
  const intentOf = (id, index) =>
    ({ id, index, dialect: 'd', startedAt: 1, model: 'm', stream: false, request: id.repeat(100) })
`

/** Appends several turns concurrently, and prints each id once appendEnd() has resolved. */
const APPENDER = `${PRELUDE}
  const log = await createCallLogStore({ dir: process.argv[1] }).open(${JSON.stringify(OPENING)})
  let index = 0
  const work = async () => {
    for (;;) {
      const id = 'turn-' + index
      log.appendIntent(intentOf(id, index++))
      await log.appendEnd(endOf(id, 500))
      print(id)
      log.appendDelivery(id, 'delivered')
    }
  }
  await Promise.all([work(), work(), work(), work()])
`

test('kill -9 at any moment loses no turn whose appendEnd() had resolved', { timeout: 60_000 }, async () => {
  const rounds = Array.from({ length: 10 }, (_, round) => round)
  let seen = 0
  const lane = async (): Promise<void> => {
    for (let round = rounds.shift(); round !== undefined; round = rounds.shift()) {
      seen += await inScratch((dir) => killOnce(dir, 5 + Math.random() * 300))
    }
  }
  await Promise.all([lane(), lane()])
  expect(seen).toBeGreaterThan(100)
})

async function killOnce(dir: string, afterMs: number): Promise<number> {
  const child = spawn(process.execPath, ['--input-type=module', '-e', APPENDER, dir], {
    stdio: ['ignore', 'pipe', 'inherit'],
  })
  const printed: string[] = []
  const lines = createInterface({ input: child.stdout })
  lines.on('line', (line) => printed.push(JSON.parse(line)))
  const gone = Promise.all([once(child, 'exit'), once(lines, 'close')])
  await once(lines, 'line')
  setTimeout(() => child.kill('SIGKILL'), afterMs)
  await gone
  const reader = createCallLogReader({ dir })
  const session = await reader.load(OPENING.id)
  const ended = new Set(session.turns.filter((turn) => turn.response !== undefined).map((turn) => turn.id))
  expect(printed.filter((id) => !ended.has(id))).toEqual([])
  expect(session.complete).toBe(false)
  expect(session.incompleteReasons).toContain('the log was not closed')

  // The lock names a dead process, so the next writer continues the log.
  const log = await createCallLogStore({ dir }).open(OPENING)
  expect(log.broken).toBeUndefined()
  expect(log.turns).toBe(session.turns.length)
  await log.close()
  const closed = await reader.load(OPENING.id)
  expect(closed.turns).toHaveLength(session.turns.length)
  expect(closed.complete).toBe(false)
  return printed.length
}

/** Fills a small disk, frees space, continues, and reports what is on the disk after each step. */
const FILLER = `${PRELUDE}
  import { statSync, unlinkSync, writeFileSync, readdirSync } from 'node:fs'
  const [dir] = process.argv.slice(1)
  writeFileSync(dir + '/ballast', Buffer.alloc(64 * 1024))
  const store = createCallLogStore({ dir: dir + '/logs' })
  const log = await store.open(${JSON.stringify(OPENING)})
  const path = dir + '/logs/${OPENING.id}/calls.plog'
  let index = 0
  let safe = 0
  while (log.broken === undefined && index < 10_000) {
    const id = 'turn-' + index
    log.appendIntent(intentOf(id, index++))
    await log.appendEnd(endOf(id, 500))
    if (log.broken === undefined) safe += 1
  }
  const sizeWhenFull = statSync(path).size
  const other = await store.open({ ...${JSON.stringify(OPENING)}, id: 'other' })
  unlinkSync(dir + '/ballast')
  for (const id of ['after-1', 'after-2']) {
    log.appendIntent(intentOf(id, index++))
    await log.appendEnd(endOf(id, 500))
  }
  const sizeAfter = statSync(path).size
  await log.close()
  const reader = createCallLogReader({ dir: dir + '/logs' })
  const session = await reader.load(${JSON.stringify(OPENING.id)})
  const ended = session.turns.filter((turn) => turn.response !== undefined).length
  const { complete, incompleteReasons } = session
  const ids = session.turns.map((turn) => turn.id)
  const again = await createCallLogStore({ dir: dir + '/logs' }).open(${JSON.stringify(OPENING)})
  again.appendIntent(intentOf('again', index++))
  await again.appendEnd(endOf('again', 10))
  await again.close()
  const continued = (await reader.load(${JSON.stringify(OPENING.id)})).turns.map((turn) => turn.id)
  print({ safe, broken: log.broken, other: other.broken, sizeWhenFull, sizeAfter, ended, complete, incompleteReasons, ids,
    againBroken: again.broken, continued })
`

test('a full disk breaks the log, keeps the stored records, and free space later adds no partial records', async (context) => {
  await inScratch(async (dir) => {
    const script = 'mount -t tmpfs -o size=512k tmpfs "$1" && exec "$2" --input-type=module -e "$3" "$1"'
    const program = ['-rm', 'sh', '-c', script, 'sh', dir, process.execPath, FILLER]
    const possible = await promisify(execFile)('unshare', ['-rm', 'mount', '-t', 'tmpfs', 'tmpfs', dir]).catch(
      (error: Error) => context.skip(`no tmpfs in a user namespace here: ${error.message}`),
    )
    expect(possible.stderr).toBe('')
    const { stdout } = await promisify(execFile)('unshare', program)
    const told = JSON.parse(stdout)
    expect(told.safe).toBeGreaterThan(10)
    expect(told.broken).toMatchObject({
      code: 'store.unavailable',
      message: expect.stringContaining('the disk is full (ENOSPC)'),
    })
    expect(told.other).toMatchObject({ code: 'store.unavailable', message: expect.stringContaining('(ENOSPC)') })
    expect(told.sizeAfter).toBe(told.sizeWhenFull)
    expect(told.ended).toBeGreaterThanOrEqual(told.safe)
    expect(told.complete).toBe(false)
    expect(told.incompleteReasons.join()).toContain('a write failed: ')
    expect(told.ids).not.toContain('after-1')
    expect(told.againBroken).toBeUndefined()
    expect(told.continued).toEqual([...told.ids, 'again'])
  })
})
