import { expect, test } from 'vitest'
import { MarkedMessages } from './marked-messages.ts'

test('messages are removed from the stream, however it is split, and partial marks stay', () => {
  const text = Buffer.from('errpolar-x polar-xyz ended exit 3 0;rest polar-xy polar-xyz kept 1 2;')
  for (let size = 1; size <= text.length; size += 1) {
    const mark = new MarkedMessages('polar-xyz')
    let content = ''
    const words: string[] = []
    for (let at = 0; at < text.length; at += size) {
      const taken = mark.take(text.subarray(at, at + size))
      content += taken.content.toString()
      words.push(...taken.words)
    }
    expect(content).toBe('errpolar-x rest polar-xy ')
    expect(words).toEqual(['ended exit 3 0', 'kept 1 2'])
    expect(mark.last).toBe('kept 1 2')
    expect(mark.take(Buffer.from('end pol')).content.toString() + mark.rest().toString()).toBe('end pol')
  }
})
