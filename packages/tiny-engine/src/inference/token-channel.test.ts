import { expect, test } from 'vitest'
import { TokenChannel } from './token-channel.ts'

const token = (id: number) => ({ id, logprob: 0, rank: 0, top: [] })

test('take() returns tokens in order, then undefined on every call', async () => {
  const channel = new TokenChannel()
  channel.push(token(1))
  channel.push(token(2))
  channel.end()
  expect([await channel.take(), await channel.take()]).toEqual([token(1), token(2)])
  expect([await channel.take(), await channel.take()]).toEqual([undefined, undefined])
})

test('take() waits for a token, an end or a failure', async () => {
  const [waiting, ending, failing] = [new TokenChannel(), new TokenChannel(), new TokenChannel()]
  const taken = [waiting.take(), ending.take(), failing.take()]
  waiting.push(token(1))
  ending.end()
  failing.fail(new Error('gone'))
  expect(await Promise.allSettled(taken)).toMatchObject([
    { value: token(1) },
    { value: undefined },
    { reason: { message: 'gone' } },
  ])
})

test('fail() and close() drop unread tokens; only the first outcome counts', async () => {
  const [failed, closed] = [new TokenChannel(), new TokenChannel()]
  failed.push(token(1))
  failed.fail(new Error('first'))
  failed.fail(new Error('second'))
  await expect(failed.take()).rejects.toThrow('first')
  closed.push(token(1))
  closed.close()
  closed.fail(new Error('too late'))
  expect(await closed.take()).toBeUndefined()
})
