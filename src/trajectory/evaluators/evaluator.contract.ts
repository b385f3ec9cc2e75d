import { randomBytes } from 'node:crypto'
import { lstat, readdir, readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Grading, type Graded, type GradeOptions } from '../../../test/support/grade.ts'
import { RolloutError } from '../../model/failure.ts'
import type { Sandbox } from '../../node/sandbox/runtimes/runtime.ts'
import type { Evaluator, EvaluatorDeps } from './evaluator.ts'
import { evaluators } from './index.ts'

export interface EvaluatorContract {
  /**
   * Returns a config with its kind, and graded cases. A limit on the number of files must allow at least 200. `dir` is a
   * folder for the operator's files.
   */
  setUp(dir: string): Promise<ContractCase> | ContractCase
  deps?: Partial<EvaluatorDeps>
}

export interface ContractCase {
  config: Readonly<Record<string, unknown>> & { kind: string }
  cases: readonly (Omit<GradeOptions, 'evaluator'> & { title: string; reward: number })[]
  /** A grading that does not end on its own; absent for an evaluator that cannot be slow. */
  slow?: {
    config: Readonly<Record<string, unknown>> & { kind: string }
    options?: Omit<GradeOptions, 'evaluator'>
    /** Resolves when the grading has started. Receives the first grading sandbox, if any. */
    begun(sandbox: Sandbox | undefined): Promise<void>
  }
  [Symbol.asyncDispose]?(): PromiseLike<void>
}

/** Time limit after a signal, which includes stopping a sandbox. */
const PROMPTLY_MS = 8000

/** Creates files that are dangerous to copy or list without checks. SECRET is a file of this machine. */
const HOSTILE = `
mkdir -p planted/deep/$(printf 'd/%.0s' $(seq 60)) planted/locked
ln -s SECRET planted/secret
ln -s / planted/root
ln -s ../../../../../../../../SECRET planted/deep/climb
ln -s loop planted/loop
touch -- planted/-rf 'planted/new
line' "planted/quote'\\"\\$(touch x)" planted/$(printf 'n%.0s' $(seq 200))
printf 'x' > planted/locked/file
chmod 000 planted/locked/file planted/locked
`
const REFUSED = [
  ['a named pipe', 'mkfifo pipe'],
  ['a hard link to a link', 'ln -s /etc/passwd link && ln -P link hard'],
  ['an enormous file', 'truncate -s 20G huge'],
  ['very many files', 'mkdir many && cd many && seq 1 3000 | xargs touch'],
] as const

/** Tests that every evaluator must pass, in real sandboxes. */
export function describeEvaluator(name: string, contract: EvaluatorContract): void {
  describe(`evaluator contract: ${name}`, { timeout: 120_000 }, () => {
    let grading: Grading
    let given: ContractCase
    beforeAll(async () => {
      grading = await Grading.start()
      given = await contract.setUp(grading.dir)
    })
    afterAll(async () => {
      await given?.[Symbol.asyncDispose]?.()
      await grading?.[Symbol.asyncDispose]()
    })

    const deps: EvaluatorDeps = { now: Date.now, secret: () => undefined, mayCall: () => true, ...contract.deps }
    const create = (config: object): Evaluator => evaluators.create(evaluators.config.parse(config), deps)
    const firstCase = (): Omit<GradeOptions, 'evaluator'> => given.cases[0]!

    test('evaluate() returns the expected finite rewards, and the same ones again', async () => {
      for (const { title, reward, ...options } of given.cases) {
        const { results } = await grading.grade({ ...options, evaluator: create(given.config), times: 2 })
        expect(results.map(({ outcome_reward: outcome }) => outcome, title)).toEqual([reward, reward])
        expect(results[0]?.components ?? null).toEqual(results[1]?.components ?? null)
        expect(results[0]?.trace_rewards ?? null).toEqual(results[1]?.trace_rewards ?? null)
      }
    })

    test('the config schema rejects an unknown setting by its name', () => {
      const parsed = evaluators.config.safeParse({ ...given.config, mispelt: 1 })
      expect(parsed.error?.issues.map(({ message }) => message).join()).toContain('mispelt')
    })

    test('hostile files of the agent neither leak a secret nor change the reward', async () => {
      const secret = `secret-${randomBytes(8).toString('hex')}`
      const secretPath = join(grading.dir, 'secret-of-the-machine')
      await writeFile(secretPath, secret)
      const agent = `${firstCase().agent ?? ''}\n${HOSTILE.replaceAll('SECRET', secretPath)}`
      const graded = await grading.grade({
        ...firstCase(),
        evaluator: create(given.config),
        agent,
        async beforeEvaluate({ submission }) {
          expect(await texts(submission)).not.toContain(secret)
        },
      })
      expect(graded.result, JSON.stringify(graded.result)).toMatchObject({ outcome_reward: given.cases[0]?.reward })
      expect(Buffer.concat([...graded.evidence.values()]).includes(secret)).toBe(false)
    })

    test.each(REFUSED)('grading %s gives a reward', async (_, script) => {
      const agent = `${firstCase().agent ?? ''}\n${script}`
      const { result } = await grading.grade({ ...firstCase(), evaluator: create(given.config), agent })
      expect(result.outcome_reward).toBeTypeOf('number')
    })

    test('evaluate() rejects if no grading sandbox can be started', async (context) => {
      const evaluator = create(given.config)
      if (!evaluator.needs.sandbox) return context.skip(`${name} needs no sandbox`)
      const graded = grading.grade({
        ...firstCase(),
        evaluator,
        beforeEvaluate: (evaluation) => ({
          ...evaluation,
          grader: () => Promise.reject(new RolloutError('runtime.start-failed', 'No sandbox today')),
        }),
      })
      await expect(graded).rejects.toMatchObject({ code: 'runtime.start-failed' })
    })

    test('evaluate() rejects if the grading sandbox dies', async (context) => {
      const evaluator = create(given.slow?.config ?? given.config)
      if (!evaluator.needs.sandbox || given.slow === undefined) return context.skip(`${name} needs no sandbox`)
      const { begun, options } = given.slow
      let killed: Promise<void> | undefined
      const graded = grading.grade({
        ...firstCase(),
        ...options,
        evaluator,
        onGrader: (sandbox) => void (killed ??= begun(sandbox).then(() => sandbox.stop())),
      })
      await expect(graded).rejects.toThrow()
      await killed
    })

    test('evaluate() ends soon after its signal fires and leaves no sandbox', async (context) => {
      if (given.slow === undefined) return context.skip(`${name} is never slow`)
      const { config, begun, options } = given.slow
      const stop = new AbortController()
      let graderBegun: Promise<void> | undefined
      const evaluator = create(config)
      let firedAt = 0
      const fire = () => {
        firedAt = performance.now()
        stop.abort(new Error('enough'))
      }
      const outcome: Promise<Graded | Error> = grading
        .grade({
          ...firstCase(),
          ...options,
          evaluator,
          signal: stop.signal,
          onGrader: (sandbox) => void (graderBegun ??= begun(sandbox).then(fire)),
          beforeEvaluate: () => void (evaluator.needs.sandbox || begun(undefined).then(fire)),
        })
        .catch((error: Error) => error)
      expect(await outcome).toMatchObject({ message: 'enough' })
      await graderBegun
      expect(performance.now() - firedAt).toBeLessThan(PROMPTLY_MS)
      expect(await grading.runtime.list()).toEqual([])
    })

    test('evaluate() does not start if its signal has already fired', async () => {
      const stop = AbortSignal.abort(new Error('too late'))
      const graded = grading.grade({
        ...firstCase(),
        evaluator: create(given.config),
        beforeEvaluate: (evaluation) => ({
          ...evaluation,
          signal: stop,
          grader: () => Promise.reject(stop.reason as Error),
        }),
      })
      await expect(graded).rejects.toThrow('too late')
    })
  })
}

/** Returns the contents of all files below a folder as one text, without following links. */
async function texts(path: string): Promise<string> {
  const stats = await lstat(path)
  if (stats.isFile()) return stats.size > 1_000_000 ? '' : readFile(path, 'latin1')
  if (!stats.isDirectory()) return ''
  const inside = await Promise.all((await readdir(path)).map((name) => texts(join(path, name))))
  return inside.join('\n')
}
