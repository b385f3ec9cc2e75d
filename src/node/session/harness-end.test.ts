import { expect, test } from 'vitest'
import { toEnd } from './harness-end.ts'
import { geminiCli } from '../harness/presets/gemini-cli.ts'
import { shell } from '../harness/presets/shell.ts'

const badSetup = Number(Object.entries(geminiCli.exitCodes).find(([, end]) => end === 'bad-setup')![0])

test.each([126, 127])(
  'toEnd() treats exit code %d of an installed harness as a suspicion: an agent can cause it',
  (code) => {
    expect(toEnd(geminiCli, code, 'said')).toMatchObject({
      end: 'gave-up',
      suspicion: { code: 'harness.not-found', message: expect.stringContaining('said') },
    })
  },
)

test('toEnd() treats an exit code for wrong settings as a suspicion', () => {
  expect(toEnd(geminiCli, badSetup, '')).toMatchObject({ end: 'gave-up', suspicion: { code: 'harness.bad-setup' } })
})

test('toEnd() treats exit code 127 of a task command, and a signal, as giving up', () => {
  expect(toEnd(shell, 127, '')).toEqual({ end: 'gave-up' })
  expect(toEnd(geminiCli, null, '')).toEqual({ end: 'gave-up' })
  expect(toEnd(geminiCli, 137, '')).toEqual({ end: 'gave-up' })
  expect(toEnd(geminiCli, 0, '')).toEqual({ end: 'finished' })
})
