import { describe, expect, test } from 'vitest'
import { AgentSpec } from '../../model/task.ts'
import { assertVersion } from './assert-version.ts'
import { findRunnable } from './find-runnable.ts'
import { codex } from './presets/codex.ts'
import type { ExecSpec, Sandbox } from '../sandbox/runtimes/runtime.ts'

const modules: string[] = []
const places = {
  dir: '/nonexistent',
  path: '',
  platform: 'linux-x64',
  node: { path: process.execPath, version: process.versions.node },
  tmpdir: '/nonexistent',
}

/** A sandbox whose commands all print `output`, and the commands that it ran. */
function saying(text: string, exitCode = 0): { sandbox: Pick<Sandbox, 'exec'>; asked: ExecSpec[] } {
  const asked: ExecSpec[] = []
  const exec = async (spec: ExecSpec) => {
    asked.push(spec)
    const output = async function* () {
      yield Buffer.from(text)
    }
    return { output, result: Promise.resolve({ exitCode }) } as unknown as Awaited<ReturnType<Sandbox['exec']>>
  }
  return { sandbox: { exec }, asked }
}

describe('settings.version', () => {
  test.each([
    [{ version: '0.125.0' }, '0.125.0'],
    [{ version: codex.package.version }, codex.package.version],
    [{ version: '' }, undefined],
    [{}, undefined],
  ])('findRunnable() of Codex with %j requires version %s in the sandbox', async (settings, version) => {
    const agent = AgentSpec.parse({ harness: 'codex', settings })
    expect((await findRunnable(agent, { folders: places, modules })).version).toBe(version)
  })

  test('assertVersion() rejects a program of another version', async () => {
    const runnable = { harness: codex, version: '0.125.0' }
    const good = saying('codex-cli 0.125.0\n')
    await assertVersion(good.sandbox, runnable, { env: { A: '1' } })
    expect(good.asked).toMatchObject([{ command: ['codex', '--version'], env: { A: '1' } }])
    const other = saying('codex-cli 0.166.0\n')
    await expect(assertVersion(other.sandbox, runnable, { env: {} })).rejects.toMatchObject({
      code: 'harness.not-found',
      message: expect.stringContaining('Codex 0.125.0 in settings.version, but the sandbox has 0.166.0') as unknown,
    })
    const none = saying('', 127)
    await expect(assertVersion(none.sandbox, runnable, { env: {} })).rejects.toThrow('has no working codex')
  })

  test('assertVersion() without a version runs no command', async () => {
    const { sandbox, asked } = saying('')
    await assertVersion(sandbox, { harness: codex }, { env: {} })
    expect(asked).toEqual([])
  })
})
