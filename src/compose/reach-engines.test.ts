import { describe, expect, test } from 'vitest'
import { RolloutError, type FailureCode } from '../model/failure.ts'
import { reachEngines } from './reach-engines.ts'

/** Opens engines by a plan: the failures of each URL before it answers. */
function plan(failures: Record<string, FailureCode[]>) {
  const attempts: string[] = []
  const open = async (url: string): Promise<string> => {
    attempts.push(url)
    const code = failures[url]?.shift()
    if (code !== undefined) throw new RolloutError(code, `${url}: ${code}.`)
    return url
  }
  return { attempts, open }
}

describe('reachEngines()', () => {
  test.each([
    'upstream.unreachable',
    'upstream.overloaded',
    'upstream.rate-limited',
    'upstream.reset',
    'upstream.timeout',
  ] as const)('waits while an engine fails with %s, and says once what it waits for', async (code) => {
    const { open, attempts } = plan({ a: [code, code] })
    const said: string[] = []
    const reached = await reachEngines(['a'], open, { waitMs: 60_000, onWait: (sentence) => said.push(sentence) })
    expect(reached).toEqual({ ready: ['a'], down: [] })
    expect(attempts).toHaveLength(3)
    expect(said).toEqual([`a: ${code}. Waiting up to 60 s until it is ready.`])
  })

  test('starts with the engines that are ready and lists the others', async () => {
    const { open } = plan({ b: ['upstream.unreachable'] })
    expect(await reachEngines(['a', 'b', 'c'], open, { waitMs: 60_000 })).toEqual({
      ready: ['a', 'c'],
      down: [{ url: 'b', why: 'b: upstream.unreachable.' }],
    })
  })

  test('does not wait for an engine that waiting does not help, even beside a ready engine', async () => {
    for (const urls of [['a'], ['b', 'a']]) {
      const { open, attempts } = plan({ a: ['upstream.failed', 'upstream.failed'] })
      await expect(reachEngines(urls, open, { waitMs: 60_000 })).rejects.toMatchObject({ code: 'upstream.failed' })
      expect(attempts).toEqual(urls)
    }
  })

  test('rejects with the error of the engine when the time is over', async () => {
    const never = async (url: string): Promise<never> => {
      throw new RolloutError('upstream.unreachable', `No engine at ${url}.`)
    }
    await expect(reachEngines(['a'], never)).rejects.toMatchObject({ message: 'No engine at a.' })
    await expect(reachEngines(['a'], never, { waitMs: 1 })).rejects.toMatchObject({
      code: 'upstream.unreachable',
      message: 'No engine at a. Waited 0.001 s.',
    })
  })

  test('stops with the reason of the signal', async () => {
    const stop = new AbortController()
    const { open } = plan({ a: Array.from({ length: 100 }, () => 'upstream.unreachable' as const) })
    const onWait = (): void => stop.abort(new Error('stopped'))
    await expect(reachEngines(['a'], open, { waitMs: 60_000, signal: stop.signal, onWait })).rejects.toThrow('stopped')
  })
})
