import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { recordSet } from '../support/recorded-set.ts'

const main = join(import.meta.dirname, '../../src/cli/main.ts')

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-closed-pipe-'))
  await recordSet({ dir, sessions: 2, turns: 3, addedIds: 20, sampledIds: 10 })
})
afterAll(() => rm(dir, { recursive: true, force: true }))

const COMMANDS = [
  ['--help'],
  ['--version'],
  ['show', '--help'],
  ['show', 'last', '--from'],
  ['show', 'last', '--json', '--from'],
  ['inspect', 'last', '--from'],
  ['build', 'last', '--from'],
  ['drift', 'last', '--from'],
  ['export', 'all', '--from'],
  ['config', 'print'],
]

test.each(COMMANDS)(
  'polar %s %s ends with status 0 and no message when standard output is closed',
  async (...words) => {
    const args = words.at(-1) === '--from' ? [...words, dir] : words
    const child = spawn(process.execPath, [main, ...args], { cwd: dir, stdio: ['ignore', 'pipe', 'pipe'] })
    // Closed before the command has started, so that its first write fails.
    child.stdout.destroy()
    const [stderr, [code]] = await Promise.all([text(child.stderr), once(child, 'exit') as Promise<[number | null]>])
    expect(stderr).not.toMatch(/EPIPE|at .*node:/)
    expect(code).toBe(0)
  },
)

test('a closed standard error changes neither the exit status nor standard output', async () => {
  const child = spawn(process.execPath, [main, 'export', 'all', '--from', dir], { stdio: ['ignore', 'pipe', 'pipe'] })
  child.stderr.destroy()
  const [stdout, [code]] = await Promise.all([text(child.stdout), once(child, 'exit') as Promise<[number | null]>])
  expect(stdout.trim().split('\n')).toHaveLength(2)
  expect(code).toBe(0)
})

test('a usage error keeps its exit status when standard error is closed', async () => {
  const child = spawn(process.execPath, [main, 'nonsense'], { stdio: ['ignore', 'pipe', 'pipe'] })
  child.stderr.destroy()
  child.stdout.resume()
  const [code] = (await once(child, 'exit')) as [number | null]
  expect(code).toBe(2)
})
