import { expect, test } from 'vitest'
import { MarkedMessages } from './marked-messages.ts'

test('messages are removed from the stream, however it is split, and partial marks stay', () => {
  const text = Buffer.from('errpolar-x polar-xyz ended exit 3 0;rest polar-xy polar-xyz kept 1 2;')
  for (let size = 1; size <= text.length; size += 1) {
    const mark = new MarkedMessages('polar-xyz')
    let content = ''
    const messages: string[] = []
    for (let at = 0; at < text.length; at += size) {
      const taken = mark.extract(text.subarray(at, at + size))
      content += taken.content.toString()
      messages.push(...taken.messages)
    }
    expect(content).toBe('errpolar-x rest polar-xy ')
    expect(messages).toEqual(['ended exit 3 0', 'kept 1 2'])
    expect(mark.last).toBe('kept 1 2')
    expect(mark.extract(Buffer.from('end pol')).content.toString() + mark.rest().toString()).toBe('end pol')
  }
})
