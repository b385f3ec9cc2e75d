import { expect, test } from 'vitest'
import { createProgress } from './progress.ts'

function screen(isTTY: boolean): {
  stream: { isTTY: boolean; columns: number; write(text: string): boolean }
  text(): string
} {
  let written = ''
  const write = (text: string): boolean => {
    written += text
    return true
  }
  return { stream: { isTTY, columns: 60, write }, text: () => written }
}

test('createProgress() draws at most ten times a second, and clears the line at the end', () => {
  const { stream, text } = screen(true)
  let time = 0
  const progress = createProgress({ total: 4, label: 'Exporting', stream, now: () => time })
  progress.advance(1, '1.0 MB')
  progress.advance()
  time = 150
  progress.advance(1, '3.0 MB')
  progress.advance(1, '4.0 MB')
  progress.finish()
  progress.finish()
  expect(text().split('\r\x1b[2K')).toEqual([
    '',
    'Exporting ██████░░░░░░░░░░░░░░░░░░ 1/4  1.0 MB',
    'Exporting ██████████████████░░░░░░ 3/4  3.0 MB',
    'Exporting ████████████████████████ 4/4  4.0 MB',
    '',
  ])
})

test('createProgress() prints nothing without a terminal', () => {
  const { stream, text } = screen(false)
  const progress = createProgress({ total: 1, label: 'Exporting', stream })
  progress.advance()
  progress.finish()
  expect(text()).toBe('')
})
