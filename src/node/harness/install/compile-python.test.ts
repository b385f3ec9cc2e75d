import { mkdir, mkdtemp, readdir, readFile, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { runProgram } from '../../../lib/process/run-program.ts'
import { compilePython } from './compile-python.ts'

const { exitCode } = await runProgram(['python3', '--version'], { env: process.env })

let folder: string
beforeEach(async (context) => {
  if (exitCode !== 0) context.skip('python3 is not installed')
  folder = await realpath(await mkdtemp(join(tmpdir(), 'polar-compile-')))
  await mkdir(join(folder, 'bin'))
  await mkdir(join(folder, 'lib'))
  // The Python of this machine instead of a copy: it finds modules in the bundle because -I is left out.
  const python = `#!/bin/sh\nshift\nPATH='${process.env['PATH']}' PYTHONPATH='${folder}/lib' exec python3 "$@"\n`
  await writeFile(join(folder, 'bin/python3'), python, { mode: 0o755 })
  const sources = { used: 'import inner', inner: 'value = 1', unused: 'value = 2' }
  for (const [name, text] of Object.entries(sources)) await writeFile(join(folder, 'lib', `${name}.py`), `${text}\n`)
})
afterEach(() => rm(folder, { recursive: true, force: true }))

async function compiled(modules: readonly string[] | undefined): Promise<string[]> {
  const imports = modules && { modules, env: {} }
  const { signal } = new AbortController()
  await compilePython({ folder, program: 'bin/python3', library: 'lib', imports, tmpdir: folder, signal })
  const cache = join(folder, 'lib/__pycache__')
  const names = await readdir(cache)
  for (const name of names) {
    const header = await readFile(join(cache, name))
    // Found by hash, and the hash is not checked: bit 0 without bit 1.
    expect(header.readUInt32LE(4)).toBe(1)
  }
  return names.map((name) => name.split('.')[0]!).sort()
}

describe('compilePython()', () => {
  test('compiles the named modules and all that they import', async () => {
    expect(await compiled(['used'])).toEqual(['inner', 'used'])
  })

  test('compiles every file where no module is named', async () => {
    expect(await compiled(undefined)).toEqual(['inner', 'unused', 'used'])
  })

  test('compiles every file where a module cannot be imported', async () => {
    expect(await compiled(['absent'])).toEqual(['inner', 'unused', 'used'])
  })

  test('Python loads the bytecode although the source has another time', async () => {
    await compiled(['used'])
    await writeFile(join(folder, 'lib/inner.py'), 'value = 3\n')
    const { stdout } = await runProgram(
      [join(folder, 'bin/python3'), '-I', '-B', '-c', 'import inner; print(inner.value)'],
      { env: {} },
    )
    expect(stdout).toBe('1\n')
  })
})
