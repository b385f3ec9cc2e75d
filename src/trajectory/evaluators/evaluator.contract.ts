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
   * A config, with its kind, and what it makes of agents; where files are limited, with room for a hundred or two. `dir` is
   * a folder for files of the operator's.
   */
  setUp(dir: string): Promise<ContractCase> | ContractCase
  deps?: Partial<EvaluatorDeps>
}

export interface ContractCase {
  config: Readonly<Record<string, unknown>> & { kind: string }
  cases: readonly (Omit<GradeOptions, 'evaluator'> & { title: string; reward: number })[]
  /** Grading that does not end by itself; absent for an evaluator that cannot be slow. */
  slow?: {
    config: Readonly<Record<string, unknown>> & { kind: string }
    options?: Omit<GradeOptions, 'evaluator'>
    /** Resolves when it is under way; gets the first sandbox of the graders, where there is one. */
    begun(sandbox: Sandbox | undefined): Promise<void>
  }
  [Symbol.asyncDispose]?(): PromiseLike<void>
}

/** Ending by a signal may take as long as ending a sandbox does. */
const PROMPTLY_MS = 8000

/** Files that do harm to whoever copies or lists them carelessly. SECRET is a file of this machine. */
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
  ['a second name of a link', 'ln -s /etc/passwd link && ln -P link hard'],
  ['an enormous file', 'truncate -s 20G huge'],
  ['very many files', 'mkdir many && cd many && seq 1 3000 | xargs touch'],
] as const

/** What every evaluator owes whoever relies on its rewards, shown in real sandboxes. */
export function describeEvaluator(name: string, contract: EvaluatorContract): void {
  describe(`the contract of evaluators, kept by ${name}`, { timeout: 120_000 }, () => {
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

    test('its rewards are what they should be, finite, and the same when graded again', async () => {
      for (const { title, reward, ...options } of given.cases) {
        const { results } = await grading.grade({ ...options, evaluator: create(given.config), times: 2 })
        expect(results.map(({ outcome_reward: outcome }) => outcome, title)).toEqual([reward, reward])
        expect(results[0]?.components ?? null).toEqual(results[1]?.components ?? null)
        expect(results[0]?.trace_rewards ?? null).toEqual(results[1]?.trace_rewards ?? null)
      }
    })

    test('a misspelt setting is refused by its name', () => {
      const parsed = evaluators.config.safeParse({ ...given.config, mispelt: 1 })
      expect(parsed.error?.issues.map(({ message }) => message).join()).toContain('mispelt')
    })

    test('files that the agent planted neither harm nor stop it', async () => {
      const secret = `secret-${randomBytes(8).toString('hex')}`
      const place = join(grading.dir, 'secret-of-the-machine')
      await writeFile(place, secret)
      const agent = `${firstCase().agent ?? ''}\n${HOSTILE.replaceAll('SECRET', place)}`
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

    test.each(REFUSED)('%s is at worst a reward of 0', async (_, script) => {
      const agent = `${firstCase().agent ?? ''}\n${script}`
      const { result } = await grading.grade({ ...firstCase(), evaluator: create(given.config), agent })
      expect(result.outcome_reward).toBeTypeOf('number')
    })

    test('it fails, and gives no reward, when there is no sandbox to grade in', async (context) => {
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

    test('it fails, and gives no reward, when the sandbox dies under it', async (context) => {
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

    test('it ends soon after its signal fires, and leaves nothing', async (context) => {
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

    test('a signal that has fired already stops it before it begins', async () => {
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

/** All that can be read below a folder without following a link, as one text. */
async function texts(path: string): Promise<string> {
  const stats = await lstat(path)
  if (stats.isFile()) return stats.size > 1_000_000 ? '' : readFile(path, 'latin1')
  if (!stats.isDirectory()) return ''
  const inside = await Promise.all((await readdir(path)).map((name) => texts(join(path, name))))
  return inside.join('\n')
}
