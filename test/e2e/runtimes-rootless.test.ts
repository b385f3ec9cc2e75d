import { afterAll, test } from 'vitest'
import { docker } from '../../src/node/sandbox/runtimes/docker.ts'
import { describeRuntime } from '../../src/node/sandbox/runtimes/runtime.contract.ts'
import { toOrphanScript } from '../../src/node/sandbox/runtimes/sandbox-probe.contract.ts'
import { startPodman } from '../support/podman.ts'

/** The user id of runtimes-user.test.ts. */
const USER_ID = 1_900_001
const podman = await startPodman({ userId: USER_ID })

if (typeof podman === 'string') {
  console.log(`rootless podman cannot run here: ${podman}`)
  test('a container of an ordinary user is a sandbox', (context) => context.skip(`stands for 48 tests: ${podman}`))
} else {
  afterAll(() => podman[Symbol.asyncDispose]())
  // The tests run as that user too. Each test file has its own process.
  process.setgroups?.([])
  process.setgid?.(USER_ID)
  process.setuid?.(USER_ID)
  const { socket, image } = podman
  const config = { kind: 'docker', socket, pull: 'never', startsPerSecond: 100 } as const
  describeRuntime(
    'docker on rootless podman',
    (dir) => docker.create(docker.config.parse(config), { dir, now: Date.now }),
    {
      image,
      exceptions: {
        'kept leftovers survive the command, do not delay its result, and end with the sandbox':
          'Podman closes the output of a command with its first process, and what stays behind ends when it writes',
        'a sandbox that uses up what the kernel counts per user leaves enough to another':
          'containers share a user of this machine unless the engine gives each a user namespace',
        'a command cannot lower its out-of-memory score': 'an engine without rights cannot set the lowest score',
      },
      orphanScript: toOrphanScript(config, { image }),
    },
  )
}
