import { expect, test } from 'vitest'
import { PrepareAction } from '../../../model/task.ts'
import { prepareSandbox } from './prepare-sandbox.ts'
import type { ExecSpec, Execution, Sandbox } from '../runtimes/runtime.ts'

/** Only the members that prepareSandbox() uses; each command exits with the next of the exit codes. */
function sandboxOf(exitCodes: number[]): { sandbox: Sandbox; done: string[] } {
  const done: string[] = []
  const exec = async ({ command, leftovers }: ExecSpec): Promise<Execution> => {
    done.push(`${command.at(-1)} (${leftovers})`)
    const exitCode = exitCodes.shift() ?? 0
    const words = Buffer.from('no such package\n')
    return {
      id: 'x',
      async *output(_stream, from = 0) {
        yield words.subarray(from)
      },
      result: Promise.resolve({
        exitCode,
        signal: null,
        isTimedOut: false,
        stdoutBytes: 0,
        stderrBytes: words.length,
        durationMs: 1,
      }),
      signal: async () => {},
      kill: async () => {},
    }
  }
  const upload = async (source: string, target: string): Promise<void> => void done.push(`${source} to ${target}`)
  return { sandbox: { exec, upload } as unknown as Sandbox, done }
}

const steps = [
  { type: 'upload_dir', source: '/data/repo', target: '/work' },
  { type: 'exec', command: 'install', max_attempts: 3 },
].map((step) => PrepareAction.parse(step))

test('steps run in order; a failed step is retried, and processes that a step starts are kept', async () => {
  const { sandbox, done } = sandboxOf([1, 1, 0])
  await prepareSandbox(sandbox, steps, AbortSignal.timeout(1000))
  expect(done).toEqual(['/data/repo to /work', 'install (keep)', 'install (keep)', 'install (keep)'])
})

test('a step that never succeeds is named with its last output, and no later step runs', async () => {
  const { sandbox, done } = sandboxOf([7, 7, 7])
  const after = PrepareAction.parse({ type: 'exec', command: 'never' })
  await expect(prepareSandbox(sandbox, [...steps, after], AbortSignal.timeout(1000))).rejects.toMatchObject({
    failure: { code: 'runtime.prepare-failed' },
    message: 'Prepare step 2 after 3 attempts: "install" exited with 7: no such package',
  })
  expect(done).not.toContain('never (keep)')
})

test('a session that ends does not wait for the retry of a step', async () => {
  const { sandbox } = sandboxOf([1, 1, 1])
  const slow = PrepareAction.parse({ type: 'exec', command: 'install', max_attempts: 3, retry_backoff_seconds: 60 })
  await expect(prepareSandbox(sandbox, [slow], AbortSignal.timeout(20))).rejects.toMatchObject({ name: 'AbortError' })
})

test('an upload whose source does not exist is a mistake in the task', async () => {
  const { sandbox } = sandboxOf([])
  const missing = Object.assign(new Error('ENOENT: no such file or directory'), { code: 'ENOENT' })
  const failing = { ...sandbox, upload: () => Promise.reject(missing) }
  const step = PrepareAction.parse({ type: 'upload_file', source: '/no/such/file', target: 'x' })
  await expect(prepareSandbox(failing, [step], AbortSignal.timeout(1000))).rejects.toMatchObject({
    code: 'config.invalid',
    message: 'Prepare step 1: /no/such/file cannot be uploaded: no such file or directory (ENOENT)',
  })
})

test('an upload that fails although its source exists keeps its failure', async () => {
  const { sandbox } = sandboxOf([])
  const failing = { ...sandbox, upload: () => Promise.reject(new Error('the sandbox is gone')) }
  const step = PrepareAction.parse({ type: 'upload_dir', source: '/', target: 'x' })
  await expect(prepareSandbox(failing, [step], AbortSignal.timeout(1000))).rejects.toThrow('the sandbox is gone')
})
