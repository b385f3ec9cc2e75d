import { afterAll, test } from 'vitest'
import { describeAttacks } from '../support/attacks/describe-attacks.ts'
import { startPodman } from '../support/podman.ts'

const podman = await startPodman()

if (typeof podman === 'string') {
  console.log(`docker cannot run here: ${podman}`)
  test('attacks on Podman', (context) => context.skip(`stands for the attack suite: ${podman}`))
} else {
  afterAll(() => podman[Symbol.asyncDispose]())
  const { socket, image } = podman
  describeAttacks({ name: 'Podman', kind: 'docker', settings: { socket, image, pull: 'never', startsPerSecond: 100 } })
}
