import { readdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { activeIn, anyHostileText } from '../../../test/support/hostile-text.ts'
import { SessionSummary } from '../../api/routes/session-routes.ts'
import { createLogger } from '../../compose/create-logger.ts'
import { formatSuggestions } from '../drift/format-suggestions.ts'
import { createProgress } from './progress.ts'
import { createScreen } from './screen.ts'
import { formatTable } from './table.ts'
import { renderSession, renderTask, renderTasks } from './task-view.ts'
import { NOW, taskSummary as summary } from '../../../test/support/task-summary.ts'

test('all output of the CLI goes through print.ts', () => {
  const source = dirname(dirname(import.meta.dirname))
  const files = readdirSync(source, { recursive: true, encoding: 'utf8' }).filter((name) =>
    /^(?:cli|compose)\/(?!.*\.test\.ts$).*\.ts$/.test(name),
  )
  const direct = files.filter((name) =>
    /process\.(?:stdout|stderr)\.write|\bconsole\.|pino\.destination/.test(readFileSync(join(source, name), 'utf8')),
  )
  // The logger writes JSON, with the same characters escaped.
  expect(direct.toSorted()).toEqual(['cli/views/print.ts', 'compose/create-logger.ts'])
})

/** Output with hostile text has as many lines as output with plain text, and no control characters. */
function expectSafe(render: (text: string) => string): void {
  const lines = render('plain').split('\n').length
  fc.assert(
    fc.property(anyHostileText, (text) => {
      const shown = render(text)
      expect(activeIn(shown)).toBeUndefined()
      expect(shown.split('\n')).toHaveLength(lines)
    }),
    { numRuns: 50 },
  )
}

function failureOf(message: string) {
  return { code: 'harness.exit-nonzero', boundary: 'harness', blame: 'policy', retryable: false, status: 500, message }
}

function sessionWith(text: string): SessionSummary {
  const usual = { task_id: 't', reward: null, timing: {}, error: null, progress: null, sample: 0, attempt: 1 }
  const failure = failureOf('x') as never
  const session = SessionSummary.parse({ ...usual, session_id: 'ses_1', status: 'ERROR', node_id: null, failure })
  return { ...session, session_id: text, node_id: text, failure: { ...session.failure!, message: text } }
}

describe('a field of one line adds no lines, in', () => {
  test('tables', () =>
    expectSafe((text) =>
      formatTable([
        ['a', text],
        [text, '1'],
      ]),
    ))

  test('tasks', () => {
    expectSafe((text) => renderTasks([{ ...summary, task_id: text, harness: text }], NOW))
    expectSafe((text) => renderTask({ ...summary, task_id: text, model: text }, [sessionWith(text)], NOW, text))
  })

  test('logs', () => {
    for (const isTTY of [true, false]) {
      expectSafe((text) => {
        let written = ''
        const logger = createLogger('info', { isTTY, write: (line) => (written += line) })
        logger.warn({ err: new Error(text), url: text, list: [text] }, text)
        return written
      })
    }
  })

  test('suggested rules', () => {
    const gain = { of: 1, before: 0, after: 1 }
    expectSafe((text) =>
      formatSuggestions(
        {
          suggestions: [
            {
              rule: { name: 'clock', find: text, replace: text, where: { role: 'system' } },
              pieces: [{ before: text, now: text }],
            },
          ],
          refused: [{ rule: { name: 'x', find: text, replace: '', where: { role: 'user' } }, why: text }],
          proof: { messages: gain },
        } as unknown as Parameters<typeof formatSuggestions>[0],
        { sessionId: 'ses_1', to: undefined },
      ),
    )
  })

  test('bars', () => {
    expectSafe((text) => {
      let written = ''
      const stream = { isTTY: true, columns: 80, write: (piece: string | Uint8Array) => ((written += piece), true) }
      const progress = createProgress({ total: 1, label: text, stream, now: () => 0 })
      progress.advance(1, text)
      progress.finish()
      using screen = createScreen(() => [text], stream)
      screen.print('line\n')
      return withoutCursor(written)
    })
  })
})

/** Removes the control codes that redraw a bar. */
function withoutCursor(text: string): string {
  const [first = '', ...others] = text.replaceAll('\r', '').split('\x1b[')
  return [first, ...others.map((piece) => piece.replace(/^\d*[FJK]/, ''))].join('')
}

test('lines of a failure are indented behind its name', () => {
  fc.assert(
    fc.property(anyHostileText, (text) => {
      const session = { ...sessionWith(text), session_id: 'ses_1', node_id: 'n', attempts: [] }
      const lines = renderSession(session).split('\n')
      expect(activeIn(lines.join(''))).toBeUndefined()
      const names = lines.map((line) => /^\S+/.exec(line)?.[0]).filter((name) => name !== undefined)
      expect(names).toEqual(['Session', 'Task', 'Status', 'Node', 'Reward', 'Failure'])
    }),
    { numRuns: 50 },
  )
})

test('JSON logs keep their values exactly', () => {
  fc.assert(
    fc.property(anyHostileText, (text) => {
      let written = ''
      const logger = createLogger('info', { isTTY: false, write: (line) => (written += line) })
      logger.info({ text }, 'read')
      expect((JSON.parse(written) as { text: string }).text).toBe(text.toWellFormed())
    }),
    { numRuns: 50 },
  )
})
