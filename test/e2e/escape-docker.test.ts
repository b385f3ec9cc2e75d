import { afterAll, test } from 'vitest'
import { runtimes } from '../../src/node/sandbox/runtimes/index.ts'
import { describeEscapes } from '../support/escapes.ts'
import { startPodman } from '../support/podman.ts'

const podman = await startPodman()

if (typeof podman === 'string') {
  console.log(`docker cannot run here: ${podman}`)
  test('escapes from docker on podman', (context) => context.skip(`stands for 31 tests: ${podman}`))
} else {
  afterAll(() => podman[Symbol.asyncDispose]())
  const { socket, image } = podman
  const config = { kind: 'docker', socket, pull: 'never', startsPerSecond: 100 } as const
  describeEscapes({
    name: 'docker on podman',
    image,
    create: (dir) => runtimes.create(runtimes.config.parse(config), { dir, now: Date.now }),
    createScript: `const runtime = runtimes.create(runtimes.config.parse(${JSON.stringify(config)}), { dir, now: Date.now })`,
  })
}
