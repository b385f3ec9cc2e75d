import { expect, test } from 'vitest'
import { RolloutError } from '../model/failure.ts'
import { createLogger } from './create-logger.ts'

function logTo(isTTY: boolean): { logger: ReturnType<typeof createLogger>; lines: string[] } {
  const lines: string[] = []
  return { lines, logger: createLogger('info', { isTTY, write: (text) => lines.push(text) }) }
}

test('on a terminal a line has time, level, message, fields and cause', () => {
  const { logger, lines } = logTo(true)
  logger.debug('not seen')
  logger.child({ sessionId: 'ses_1' }).warn({ err: new Error('no route'), tries: 2 }, 'a lease was lost')
  expect(lines).toEqual([
    expect.stringMatching(/^\d\d:\d\d:\d\d warn {2}a lease was lost {2}sessionId=ses_1 {2}tries=2 {2}no route\n$/),
  ])
})

test('without a terminal a line is JSON, with the code of a known failure and the stack of any other error', () => {
  const { logger, lines } = logTo(false)
  logger.warn({ err: new RolloutError('server.unreachable', 'Nobody is there.') }, 'known')
  logger.warn({ err: new TypeError('x is undefined') }, 'not known')
  const [known, bug] = lines.map((line) => JSON.parse(line) as { err: Record<string, unknown> })
  expect(known!.err).toEqual({ code: 'server.unreachable', message: 'Nobody is there.' })
  expect(bug!.err).toMatchObject({ type: 'TypeError', stack: expect.stringContaining('create-logger.test') })
})
