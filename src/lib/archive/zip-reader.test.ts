import { deflateRawSync } from 'node:zlib'
import { expect, test } from 'vitest'
import { readZip } from './zip-reader.ts'

/** As other programs write them. `claimed`: the size that is told, where it is not true. */
function zipOf(files: readonly { name: string; text: string; isStored?: boolean; claimed?: number }[]): Buffer {
  const [bodies, directory]: [Buffer[], Buffer[]] = [[], []]
  let offset = 0
  for (const { name, text, isStored = false, claimed } of files) {
    const packed = isStored ? Buffer.from(text) : deflateRawSync(text)
    const local = Buffer.alloc(30)
    local.writeUInt32LE(0x04034b50, 0)
    local.writeUInt16LE(Buffer.byteLength(name), 26)
    const central = Buffer.alloc(46)
    central.writeUInt32LE(0x02014b50, 0)
    central.writeUInt16LE(isStored ? 0 : 8, 10)
    central.writeUInt32LE(packed.length, 20)
    central.writeUInt32LE(claimed ?? Buffer.byteLength(text), 24)
    central.writeUInt16LE(Buffer.byteLength(name), 28)
    central.writeUInt32LE(offset, 42)
    bodies.push(local, Buffer.from(name), packed)
    directory.push(central, Buffer.from(name))
    offset += local.length + Buffer.byteLength(name) + packed.length
  }
  const end = Buffer.alloc(22)
  end.writeUInt32LE(0x06054b50, 0)
  end.writeUInt16LE(files.length, 10)
  end.writeUInt32LE(offset, 16)
  return Buffer.concat([...bodies, ...directory, end, Buffer.from('a comment')])
}

test('readZip() returns stored and compressed files in order', () => {
  const archive = zipOf([
    { name: 'a/ü.txt', text: 'hello '.repeat(1000) },
    { name: 'b', text: 'plain', isStored: true },
    { name: 'empty', text: '' },
  ])
  const files = readZip(archive).map((entry) => [entry.name, entry.size, entry.read().toString()])
  expect(files).toEqual([
    ['a/ü.txt', 6000, 'hello '.repeat(1000)],
    ['b', 5, 'plain'],
    ['empty', 0, ''],
  ])
})

test('readZip() rejects files whose size differs from the stated size', () => {
  expect(() => readZip(zipOf([{ name: 'bomb', text: 'x'.repeat(1e6), claimed: 10 }]))[0]?.read()).toThrow()
  expect(() => readZip(zipOf([{ name: 'less', text: 'x', claimed: 10 }]))[0]?.read()).toThrow('has 1 bytes, not 10')
})

test('readZip() rejects data that is not an archive, and truncated archives', () => {
  expect(() => readZip(Buffer.from('no archive at all, but long enough'))).toThrow('Not a ZIP archive')
  const whole = zipOf([{ name: 'a', text: 'hello' }])
  expect(() => readZip(whole.subarray(0, whole.length - 31))).toThrow('Not a ZIP archive')
  expect(() => readZip(whole.subarray(20))).toThrow()
})
