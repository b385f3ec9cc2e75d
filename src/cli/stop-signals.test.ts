import { spawn, type ChildProcess } from 'node:child_process'
import { once } from 'node:events'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'
import { expect, onTestFinished, test } from 'vitest'

const file = join(import.meta.dirname, 'stop-signals.ts')

/** A process that prints the signals it receives, and does not end by itself. */
async function startListening(options: string): Promise<{ child: ChildProcess; next: () => Promise<string> }> {
  const script = `
    import { listenForStop } from ${JSON.stringify(file)}
    const stop = listenForStop(${options})
    stop.first.addEventListener('abort', () => console.log('first ' + stop.name))
    stop.second.addEventListener('abort', () => console.log('second'))
    setInterval(() => {}, 1000)
    console.log('ready')`
  const child = spawn(process.execPath, ['--input-type=module', '-e', script], { stdio: ['ignore', 'pipe', 'inherit'] })
  onTestFinished(() => void child.kill('SIGKILL'))
  const lines = createInterface({ input: child.stdout })[Symbol.asyncIterator]()
  const next = async (): Promise<string> => String((await lines.next()).value)
  expect(await next()).toBe('ready')
  return { child, next }
}

test('listenForStop() aborts `first`, then `second`; the third signal has its default action', async () => {
  const { child, next } = await startListening('{}')
  child.kill('SIGTERM')
  expect(await next()).toBe('first SIGTERM')
  child.kill('SIGTERM')
  expect(await next()).toBe('second')
  child.kill('SIGTERM')
  expect(await once(child, 'exit')).toEqual([null, 'SIGTERM'])
})

test('with twoSteps the second signal has its default action', async () => {
  const { child, next } = await startListening('{ twoSteps: true }')
  child.kill('SIGTERM')
  expect(await next()).toBe('first SIGTERM')
  child.kill('SIGTERM')
  expect(await once(child, 'exit')).toEqual([null, 'SIGTERM'])
})

test('SIGINT from the terminal and, forwarded, from the parent process counts once', async () => {
  const { child, next } = await startListening('{ twoSteps: true }')
  child.kill('SIGINT')
  expect(await next()).toBe('first SIGINT')
  child.kill('SIGINT')
  await sleep(600)
  expect([child.exitCode, child.signalCode]).toEqual([null, null])
  child.kill('SIGINT')
  expect(await once(child, 'exit')).toEqual([null, 'SIGINT'])
})
