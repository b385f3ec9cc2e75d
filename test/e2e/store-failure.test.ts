import { spawnSync } from 'node:child_process'
import { mkdirSync, writeFileSync } from 'node:fs'
import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { Stack } from '../support/stack.ts'

const main = fileURLToPath(new URL('../../src/cli/main.ts', import.meta.url))
const caller = fileURLToPath(new URL('../support/call-gateway.ts', import.meta.url))

let scratch: string
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-store-'))
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

describe('a folder that cannot be written', () => {
  test('the harness gets its answer, and reading the session fails with store.unavailable', async () => {
    const file = join(scratch, 'a-file')
    await writeFile(file, '')
    await using stack = await Stack.start({ script: 'default: { text: fine }', dir: join(file, 'sessions') })
    const request = { model: 'tiny', messages: [{ role: 'user' as const, content: 'x' }] }
    const answer = await stack.client().chat.completions.create(request)
    expect(answer.choices[0]?.message.content).toBe('fine')
    await expect(stack.recorded()).rejects.toMatchObject({ code: 'store.unavailable' })
  })

  test('polar record reports the error before it starts the harness', async () => {
    const file = join(scratch, 'another-file')
    await writeFile(file, '')
    const run = spawnSync(process.execPath, [main, 'record', '--out', join(file, 'x'), '--', 'false'], {
      encoding: 'utf8',
    })
    expect(run.status).toBe(2)
    expect(run.stderr).toMatch(/cannot be written.*ENOTDIR.*--out/)
  })
})

describe('a disk that fills up', () => {
  const mountable = spawnSync('unshare', ['-rm', 'mount', '-t', 'tmpfs', 'none', '/mnt']).status === 0

  test('calls are answered until the disk is full, then rejected with 503, and the session is marked incomplete', ({
    skip,
  }) => {
    if (!mountable) skip('needs unshare and mount of a tmpfs in a user namespace')
    const script = join(scratch, 'script.yaml')
    const disk = join(scratch, 'disk')
    writeFileSync(script, 'default: { tokens: 2000 }')
    mkdirSync(disk)
    // A disk of 256 KiB; the calls need far more.
    const inside = `mount -t tmpfs -o size=256k none "$1" && shift && exec "$@"`
    const record = [process.execPath, main, 'record', '--json', '--script', script, '--out', disk, '--']
    const run = spawnSync(
      'unshare',
      ['-rm', 'sh', '-c', inside, 'sh', disk, ...record, process.execPath, caller, '60'],
      {
        encoding: 'utf8',
      },
    )
    const [, answered, refused] = /(\d+) calls answered, (\d+) refused/.exec(run.stderr) ?? []
    expect(Number(answered) + Number(refused), run.stderr).toBe(60)
    // The call during which the disk fills up is still answered.
    expect(Number(answered)).toBeGreaterThan(0)
    expect(Number(refused)).toBeGreaterThan(0)
    const summary = JSON.parse(run.stdout) as { complete: boolean; incomplete_reasons: string[] }
    expect(summary.complete).toBe(false)
    expect(summary.incomplete_reasons.join()).toMatch(/no space|ENOSPC/i)
    expect(run.status).toBe(1)
  })
})
