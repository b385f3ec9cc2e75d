import { mkdtemp, realpath, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { runtimes } from '../../src/node/sandbox/runtimes/index.ts'
import type { Runtime, Sandbox } from '../../src/node/sandbox/runtimes/runtime.ts'
import { toProbeSpec } from '../../src/node/sandbox/runtimes/sandbox-probe.contract.ts'
import { startPodman } from '../support/podman.ts'
import { bubblewrapConfig } from '../support/bubblewrap.ts'

const podman = await startPodman()
if (typeof podman === 'string') console.log(`docker cannot run here: ${podman}`)
else afterAll(() => podman[Symbol.asyncDispose]())

const kinds = [
  { kind: 'local', network: { kind: 'open' } },
  { ...bubblewrapConfig, network: { kind: 'none' } },
  ...(typeof podman === 'string'
    ? []
    : [
        {
          kind: 'docker',
          network: { kind: 'none' },
          socket: podman.socket,
          image: podman.image,
          pull: 'never',
        } as const,
      ]),
] as const

for (const { network, ...config } of kinds) {
  describe(`snapshots of ${config.kind}`, { timeout: 60_000 }, () => {
    let dir: string
    let runtime: Runtime
    let unusable: string | undefined

    beforeAll(async () => {
      dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-snapshots-'))
      // Enough for two snapshots.
      const limits = { snapshotsMaxGb: 8 / 1024 }
      runtime = runtimes.create(runtimes.config.parse({ ...config, ...limits }), {
        dir: join(dir, 'data'),
        now: Date.now,
      })
      const checked = await runtime.check(AbortSignal.timeout(30_000))
      if (!checked.isUsable) console.log(`${config.kind} cannot run here: ${(unusable = checked.reason)}`)
    })
    afterAll(async () => {
      await runtime[Symbol.asyncDispose]()
      await rm(dir, { recursive: true, force: true })
    })

    async function start(snapshot?: string): Promise<Sandbox> {
      const spec = toProbeSpec('kept', { network, ...(snapshot !== undefined && { snapshot }) })
      return runtime.start(spec, AbortSignal.timeout(30_000))
    }
    async function keep(name: string): Promise<void> {
      await using sandbox = await start()
      await sandbox.writeFile('name', name)
      await sandbox.writeFile('bulk', Buffer.alloc(3 * 1024 * 1024, name))
      await sandbox.snapshot(name)
    }
    const nameIn = async (sandbox: Sandbox) => String(await sandbox.readFile('name', { maxBytes: 100 }))

    test('are removed above the size limit, except those that a sandbox uses', async (context) => {
      if (unusable !== undefined) return context.skip(unusable)
      await keep('first')
      await using user = await start('first')
      for (const name of ['second', 'third', 'fourth']) await keep(name)
      await runtime.removeOldSnapshots!()
      await expect(start('second')).rejects.toMatchObject({ code: 'runtime.image-missing' })
      expect(await nameIn(user)).toBe('first')
      for (const name of ['first', 'fourth']) {
        await using sandbox = await start(name)
        expect(await nameIn(sandbox)).toBe(name)
      }
      await user.stop()
      await keep('fifth')
      await runtime.removeOldSnapshots!()
      await using last = await start('fifth')
      expect(await nameIn(last)).toBe('fifth')
      // The name of a removed snapshot can be used again.
      await keep('second')
      await using again = await start('second')
      expect(await nameIn(again)).toBe('second')
    })
  })
}
