import { spawn } from 'node:child_process'
import { once } from 'node:events'
import { expect, test } from 'vitest'
import { NativeGate } from './native-gate.ts'

test('pass() runs the work and returns its result or throws its error', async () => {
  const gate = new NativeGate()
  expect(await gate.pass(async () => 5)).toBe(5)
  await expect(gate.pass(() => Promise.reject(new Error('no')))).rejects.toThrow('no')
})

test('shut() returns immediately if no work runs, and admits no further work', async () => {
  const gate = new NativeGate()
  await gate.pass(async () => undefined)
  gate.shut(60_000)
  let entered = false
  void new NativeGate(gate.buffer).pass(async () => {
    entered = true
  })
  await new Promise((resolve) => setImmediate(resolve))
  expect(entered).toBe(false)
})

test('shut() waits for running work up to its time limit', () => {
  const gate = new NativeGate()
  void gate.pass(() => new Promise(() => undefined))
  const before = performance.now()
  gate.shut(50)
  expect(performance.now() - before).toBeGreaterThan(40)
})

test('process.exit() during inference ends with its own exit code', async () => {
  const pool = new URL('./pool.ts', import.meta.url).href
  const script = `
    import { createInferencePool } from ${JSON.stringify(pool)}
    const pool = await createInferencePool({ workers: 2 })
    for (const prompt of [[1, 5], [1, 6]]) void pool.score(Int32Array.from(prompt), new Int32Array(5000).fill(7))
    setTimeout(() => process.exit(7), 50)`
  const child = spawn(process.execPath, ['--input-type=module', '--eval', script], { stdio: 'ignore' })
  expect(await once(child, 'exit')).toEqual([7, null])
})
