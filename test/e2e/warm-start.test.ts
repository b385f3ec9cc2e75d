import { mkdir, mkdtemp, readdir, realpath, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { PrepareAction } from '../../src/model/task.ts'
import { runtimes } from '../../src/node/sandbox/runtimes/index.ts'
import type { Runtime, Sandbox, SandboxSpec } from '../../src/node/sandbox/runtimes/runtime.ts'
import { WarmStarts } from '../../src/node/sandbox/prepare/warm-start.ts'
import { runtimeConfig } from '../support/bubblewrap.ts'

for (const kind of ['local', 'bubblewrap'] as const) {
  const runtimeIn = (dir: string) => runtimes.create(runtimes.config.parse(runtimeConfig(kind)), { dir, now: Date.now })
  const scratch = await mkdtemp(join(await realpath(tmpdir()), 'polar-warm-'))
  const probe = runtimeIn(join(scratch, 'check'))
  const checked = await probe.check(AbortSignal.timeout(30_000))
  await probe[Symbol.asyncDispose]()

  describe(`warm starts with ${kind}`, { timeout: 60_000 }, () => {
    beforeEach((context) => {
      if (!checked.isUsable) context.skip(`${kind} cannot run here: ${checked.reason}`)
    })

    let runtime: Runtime
    let warm: WarmStarts
    let repo: string
    let count = 0

    beforeAll(async () => {
      runtime = runtimeIn(join(scratch, 'data'))
      warm = new WarmStarts(runtime)
      repo = join(scratch, 'repo')
      await mkdir(join(repo, 'src'), { recursive: true })
      await writeFile(join(repo, 'src', 'main'), 'one')
    })
    afterAll(async () => {
      expect(await runtime.list()).toEqual([])
      await runtime[Symbol.asyncDispose]()
      await rm(scratch, { recursive: true, force: true })
    })

    const toSpec = (more: Partial<SandboxSpec> = {}): SandboxSpec => ({
      id: `warm-${process.pid}-${(count += 1)}`,
      workdir: '/workspace',
      env: {},
      limits: {},
      network: { kind: kind === 'local' ? 'open' : 'none' },
      mounts: [],
      labels: {},
      leaseUntil: Date.now() + 600_000,
      ...more,
    })
    /** Uploads the repository and installs a file whose content is different on every installation. */
    const steps = (install = 'cat repo/src/main > installed; cat /proc/sys/kernel/random/uuid > unique') =>
      [
        { type: 'upload_dir', source: repo, target: 'repo' },
        { type: 'exec', command: install },
      ].map((step) => PrepareAction.parse(step))
    const start = (actions = steps(), more: Partial<SandboxSpec> = {}, signal = AbortSignal.timeout(30_000)) =>
      warm.start(toSpec(more), actions, signal)
    const read = async (sandbox: Sandbox, path: string) => String(await sandbox.readFile(path, { maxBytes: 1000 }))

    test('the second sandbox starts from the prepared state of the first and shares no files with it', async () => {
      const first = await start()
      const second = await start()
      expect([first.isWarm, second.isWarm]).toEqual([false, true])
      expect(await read(second.sandbox, 'installed')).toBe('one')
      expect(await read(second.sandbox, 'repo/src/main')).toBe('one')
      expect(await read(second.sandbox, 'unique')).toBe(await read(first.sandbox, 'unique'))
      await first.sandbox.writeFile('installed', 'changed by the first')
      await second.sandbox.writeFile('repo/src/main', 'changed by the second')
      const third = await start()
      expect(third.isWarm).toBe(true)
      expect(await read(third.sandbox, 'installed')).toBe('one')
      expect(await read(third.sandbox, 'repo/src/main')).toBe('one')
      for (const { sandbox } of [first, second, third]) await sandbox.stop()
    })

    test('another process uses the same snapshot', async () => {
      await using other = runtimeIn(join(scratch, 'data'))
      const { sandbox, isWarm } = await new WarmStarts(other).start(toSpec(), steps(), AbortSignal.timeout(30_000))
      expect(isWarm).toBe(true)
      await sandbox.stop()
    })

    test('concurrent starts prepare only once', async () => {
      const actions = steps('sleep 0.3; cat /proc/sys/kernel/random/uuid > unique')
      const all = await Promise.all([start(actions), start(actions), start(actions), start(actions)])
      expect(all.filter(({ isWarm }) => !isWarm)).toHaveLength(1)
      expect(new Set(await Promise.all(all.map(({ sandbox }) => read(sandbox, 'unique')))).size).toBe(1)
      for (const { sandbox } of all) await sandbox.stop()
    })

    test('changed files, steps, environment or workdir cause a new preparation', async () => {
      await writeFile(join(repo, 'src', 'main'), 'two')
      const changed = await start()
      expect(changed.isWarm).toBe(false)
      expect(await read(changed.sandbox, 'installed')).toBe('two')
      await changed.sandbox.stop()
      await writeFile(join(repo, 'new'), '')
      for (const more of [{}, { env: { A: '1' } }, { workdir: '/elsewhere' }]) {
        const { sandbox, isWarm } = await start(steps(), more)
        expect(isWarm, JSON.stringify(more)).toBe(false)
        await sandbox.stop()
      }
      const other = await start(steps('echo other > installed'))
      expect(other.isWarm).toBe(false)
      await other.sandbox.stop()
    })

    test('a failed preparation leaves no sandbox or snapshot, and waiting starts prepare for themselves', async () => {
      const before = await readdir(join(scratch, 'data', 'snapshots'))
      const failing = steps('sleep 0.2; echo no >&2; exit 3')
      const ended = await Promise.allSettled([start(failing), start(failing)])
      for (const each of ended)
        expect(each).toMatchObject({ status: 'rejected', reason: { code: 'runtime.prepare-failed' } })
      expect(await runtime.list()).toEqual([])
      expect(await readdir(join(scratch, 'data', 'snapshots'))).toEqual(before)
    })

    test('a start that is aborted while it waits or prepares leaves no sandbox', async () => {
      const slow = steps('sleep 20')
      const signal = AbortSignal.timeout(500)
      const began = performance.now()
      const ended = await Promise.allSettled([start(slow, {}, signal), start(slow, {}, signal)])
      expect(ended.map(({ status }) => status)).toEqual(['rejected', 'rejected'])
      expect(performance.now() - began).toBeLessThan(5000)
      expect(await runtime.list()).toEqual([])
    })
  })
}
