import { spawnSync } from 'node:child_process'
import { existsSync } from 'node:fs'
import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, expect, test } from 'vitest'
import { checkId, removeLeftChecks } from './check-sandbox.ts'
import { Records } from './records.ts'

const dir = await mkdtemp(join(tmpdir(), 'polar-records-'))
afterAll(() => rm(dir, { recursive: true, force: true }))

test('list() removes drafts of dead processes only', async () => {
  const { pid: gone } = spawnSync('true')
  const folders = [gone, process.pid].map((pid) => join(dir, 'sandboxes', `.${pid}-${crypto.randomUUID()}`))
  for (const folder of folders) {
    await mkdir(join(folder, 'work'), { recursive: true })
    await writeFile(join(folder, 'work', 'file'), '')
  }
  expect(await new Records(dir).list()).toEqual([])
  expect(folders.map((folder) => existsSync(folder))).toEqual([false, true])
})

test('removeLeftChecks() removes test sandboxes of dead processes', async () => {
  const { pid: gone } = spawnSync('true')
  const removed: string[] = []
  const ids = [`check-${gone}-1`, checkId(), `agent-${gone}-1`]
  await removeLeftChecks({
    list: async () => ids.map((id) => ({ id, labels: {}, leaseUntil: 0, startedAt: 0 })),
    remove: async (id) => void removed.push(id),
  })
  expect(removed).toEqual([`check-${gone}-1`])
})
