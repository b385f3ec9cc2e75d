import { describe, expect, test } from 'vitest'
import * as z from 'zod'
import { plugs, type Plug } from './plug.ts'

const Round = z.strictObject({ kind: z.literal('round'), radius: z.number().default(1) })
const Square = z.strictObject({ kind: z.literal('square'), side: z.number() })
const round: Plug<typeof Round, string, string> = {
  config: Round,
  create: ({ radius }, unit) => `round ${radius} ${unit}`,
}
const square: Plug<typeof Square, string, string> = {
  config: Square,
  create: ({ side }, unit) => `square ${side} ${unit}`,
}
const shapes = plugs([round, square])

describe('plugs()', () => {
  test('creates the implementation of the config, with its defaults', () => {
    expect(shapes.kinds).toEqual(['round', 'square'])
    expect(shapes.create(shapes.config.parse({ kind: 'round' }), 'cm')).toBe('round 1 cm')
    expect(shapes.create(shapes.config.parse({ kind: 'square', side: 2 }), 'cm')).toBe('square 2 cm')
  })

  test('names the valid kinds, and the misspelt key of a known one', () => {
    expect(() => shapes.config.parse({ kind: 'oval' })).toThrow('must be one of round, square')
    expect(() => shapes.config.parse({ kind: 'square', side: 1, sides: 2 })).toThrow('sides')
  })
})
