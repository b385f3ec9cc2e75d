import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, expect, test } from 'vitest'
import { RolloutError } from '../../model/failure.ts'
import { RuntimeSpec } from '../../model/task.ts'
import { Checkouts } from './prepare/checkouts.ts'
import { assertDefaultRuntime, DEFAULT_RUNTIME, OpenRuntimes, type OpenRuntimesOptions } from './open-runtimes.ts'

let dir: string
beforeEach(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-open-runtimes-'))
})
afterEach(() => rm(dir, { recursive: true, force: true }))

function openRuntimes(
  settingsOf: OpenRuntimesOptions['settingsOf'],
  {
    defaultRuntime = DEFAULT_RUNTIME,
    allowsLocal = false,
  }: Partial<Pick<OpenRuntimesOptions, 'defaultRuntime' | 'allowsLocal'>> = {},
): OpenRuntimes {
  const now = (): number => 0
  const checkouts = new Checkouts({ dir: join(dir, 'checkouts'), limits: { maxBytes: 1, maxAgeMs: 1 }, env: {}, now })
  return new OpenRuntimes({ dir, defaultRuntime, settingsOf, modules: [], prepare: { checkouts }, allowsLocal, now })
}

test('the default runtime is rejected with a remedy if its configured program does not exist', async () => {
  await using opened = openRuntimes(async () => ({ program: '/no/such/bwrap' }))
  const refused = assertDefaultRuntime(opened)
  await expect(refused).rejects.toMatchObject({ code: 'runtime.unavailable' })
  await expect(refused).rejects.toThrow(
    /bubblewrap does not work on this machine: \/no\/such\/bwrap is not installed[\s\S]*node\.runtimes\.bubblewrap\.program[\s\S]*--runtime[\s\S]*"local"/,
  )
})

test('the default runtime is rejected with the reason why bwrap cannot be fetched', async () => {
  await using opened = openRuntimes(async () => {
    throw new RolloutError('runtime.unavailable', 'bwrap is not installed, and cannot be fetched: offline')
  })
  await expect(assertDefaultRuntime(opened)).rejects.toThrow(/isolation[^\n]*cannot be fetched: offline/)
})

test('a task that names no runtime gets the runtime that the operator chose', async () => {
  await using opened = openRuntimes(async () => ({}), { defaultRuntime: 'local' })
  expect((await opened.open(undefined)).runtime.kind).toBe('local')
})

test('a task without a runtime never falls back to local', async () => {
  await using opened = openRuntimes(async () => ({ program: '/no/such/bwrap' }))
  await expect(opened.open(undefined)).rejects.toMatchObject({ code: 'runtime.unavailable' })
})

test('a task that requests local gets it only if the operator allows local or chose it', async () => {
  const asked = RuntimeSpec.parse({ backend: 'local' })
  await using refusing = openRuntimes(async () => ({}))
  await expect(refusing.open(asked)).rejects.toMatchObject({
    code: 'config.invalid',
    message: expect.stringMatching(/isolates nothing.*root.*--runtime local/),
  })
  await using allowing = openRuntimes(async () => ({}), { allowsLocal: true })
  expect((await allowing.open(asked)).runtime.kind).toBe('local')
  await using usual = openRuntimes(async () => ({}), { defaultRuntime: 'local' })
  expect((await usual.open(asked)).runtime.kind).toBe('local')
})
