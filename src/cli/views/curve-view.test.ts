import { expect, test } from 'vitest'
import { renderCurve } from './curve-view.ts'

test('renderCurve() draws a column for each value', () => {
  expect(renderCurve([0, 0.25, 0.5, 1], 35)).toEqual([
    '  1.0 │      ██',
    '      │      ██',
    '      │      ██',
    '      │    ████',
    '      │  ▄▄████',
    '  0.0 │  ██████',
  ])
})

test('renderCurve() fits 80 columns and shows the latest of many values', () => {
  const lines = renderCurve([...Array<number>(100).fill(0), 1], 101)
  expect(lines.every((line) => line.length <= 80)).toBe(true)
  expect(lines[0]!.endsWith(' █')).toBe(true)
  expect(renderCurve([], 10)).toHaveLength(6)
})
