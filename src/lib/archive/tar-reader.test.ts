import { execFileSync } from 'node:child_process'
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import fc from 'fast-check'
import { afterAll, expect, test } from 'vitest'
import { readTar, type TarEntry } from './tar-reader.ts'

const dir = mkdtempSync(join(tmpdir(), 'polar-tar-'))
afterAll(() => rmSync(dir, { recursive: true, force: true }))

const long = `${'d'.repeat(90)}/${'f'.repeat(90)}`
mkdirSync(join(dir, 'tree', 'd'.repeat(90)), { recursive: true })
writeFileSync(join(dir, 'tree', long), 'long')
writeFileSync(join(dir, 'tree', 'naïve'), 'x'.repeat(1000), { mode: 0o640 })
symlinkSync('t'.repeat(150), join(dir, 'tree', 'link'))

function pack(format: string): Buffer {
  return execFileSync('tar', ['-C', dir, `--format=${format}`, '--sort=name', '-cf', '-', 'tree'])
}

async function* cut(bytes: Buffer, sizes: readonly number[]): AsyncGenerator<Buffer> {
  let [offset, turn] = [0, 0]
  while (offset < bytes.length) {
    const size = sizes[turn++ % sizes.length]!
    yield bytes.subarray(offset, offset + size)
    offset += size
  }
}

async function read(source: AsyncIterable<Uint8Array>): Promise<(TarEntry & { content: string })[]> {
  const entries: (TarEntry & { content: string })[] = []
  for await (const part of readTar(source)) {
    if ('entry' in part) entries.push({ ...part.entry, content: '' })
    else entries.at(-1)!.content += String(part.data)
  }
  return entries
}

test.each(['ustar', 'gnu', 'pax'])('readTar() reads the %s archives of tar', async (format) => {
  if (format === 'ustar') rmSync(join(dir, 'tree', 'link'))
  const entries = await read(cut(pack(format), [700]))
  if (format === 'ustar') symlinkSync('t'.repeat(150), join(dir, 'tree', 'link'))
  const found = new Map(entries.map((entry) => [entry.name, entry]))
  expect(found.get('tree/')).toMatchObject({ kind: 'directory' })
  expect(found.get(`tree/${long}`)).toMatchObject({ kind: 'file', content: 'long' })
  expect(found.get('tree/naïve')).toMatchObject({ mode: 0o640, size: 1000, content: 'x'.repeat(1000) })
  if (format !== 'ustar') expect(found.get('tree/link')).toMatchObject({ kind: 'symlink', target: 't'.repeat(150) })
})

test('readTar() returns the same entries for any division into chunks', async () => {
  const bytes = pack('pax')
  const whole = await read(cut(bytes, [bytes.length]))
  await fc.assert(
    fc.asyncProperty(fc.array(fc.integer({ min: 1, max: 3000 }), { minLength: 1, maxLength: 5 }), async (sizes) => {
      expect(await read(cut(bytes, sizes))).toEqual(whole)
    }),
    { numRuns: 30 },
  )
})

test('readTar() throws for truncated or damaged archives, and never hangs', async () => {
  const bytes = pack('gnu')
  await fc.assert(
    fc.asyncProperty(fc.integer({ min: 0, max: bytes.findLastIndex((byte) => byte !== 0) }), async (end) => {
      await expect(read(cut(bytes.subarray(0, end), [512]))).rejects.toThrow(/archive/)
    }),
    { numRuns: 30 },
  )
  const damaged = Buffer.from(bytes)
  damaged[3] = 1
  await expect(read(cut(damaged, [512]))).rejects.toThrow('checksum')
})
