import { expect, test } from 'vitest'
import { readElfNeeds } from './elf.ts'

test('readElfNeeds() returns loader, libraries and glibc version of Node', async (context) => {
  if (process.platform !== 'linux') context.skip('Node is an ELF file on Linux only')
  const needs = await readElfNeeds(process.execPath)
  expect(needs?.interpreter).toMatch(/\/ld-/)
  expect(needs?.libraries.some((name) => name.startsWith('libc.'))).toBe(true)
  if (needs?.interpreter?.includes('ld-linux')) expect(needs.glibc).toMatch(/^2\.\d+$/)
})

test('readElfNeeds() is undefined for a file that is not a program', async () => {
  expect(await readElfNeeds(import.meta.filename)).toBeUndefined()
  expect(await readElfNeeds('/dev/null')).toBeUndefined()
})
