import { expect, test } from 'vitest'
import { countCrash } from './crash-suspects.ts'

/** The sessions that are refused after each death; `deaths` holds the sessions with calls in flight at each of them. */
function play(deaths: readonly string[]): string[] {
  const sessions = ['a', 'b', 'c'].map((id) => ({ id, isBusy: false, crashes: 0 }))
  return deaths.map((busy) => {
    for (const session of sessions) session.isBusy = busy.includes(session.id)
    return countCrash(sessions, 3)
      .map(({ id }) => id)
      .join('')
  })
}

test.each([
  ['the only session with calls in flight at three deaths', ['a', 'a', 'a'], ['', '', 'a']],
  ['not a session that had none at one of them', ['a', 'a', '', 'a', 'a'], ['', '', '', '', '']],
  ['not sessions that had some at fewer deaths', ['ab', 'ac', 'abc'], ['', '', 'a']],
  ['none of several before one is left', ['ab', 'ab', 'ab', 'ab', 'a'], ['', '', '', '', 'a']],
  ['all of several at six deaths', ['ab', 'ab', 'abc', 'ab', 'ab', 'ab'], ['', '', '', '', '', 'ab']],
])('countCrash() names %s', (_, deaths, refused) => {
  expect(play(deaths)).toEqual(refused)
})
