import fc from 'fast-check'
import { expect, test } from 'vitest'
import { createTextSealer } from './text-sealer.ts'

test('open() returns what the same session sealed, also after a restart, and nothing for other sessions', () => {
  fc.assert(
    fc.property(fc.string({ unit: 'grapheme' }), (text) => {
      const sealed = createTextSealer('sk-one').seal(text)
      expect(sealed).toMatch(/^[A-Za-z0-9_-]+$/)
      expect(createTextSealer('sk-one').open(sealed)).toBe(text)
      expect(createTextSealer('sk-one').seal(text)).toBe(sealed)
      expect(createTextSealer('sk-two').open(sealed)).toBeUndefined()
    }),
  )
})

test('open() returns undefined for changed, truncated and invented text', () => {
  const sealer = createTextSealer('sk-one')
  const sealed = sealer.seal('a thought')
  for (const wrong of [
    '',
    'x',
    sealed.slice(1),
    `${sealed}A`,
    `${sealed}=`,
    sealed.replace(/^./, (c) => (c === 'A' ? 'B' : 'A')),
  ]) {
    expect(sealer.open(wrong)).toBeUndefined()
  }
})
