import { afterAll, test } from 'vitest'
import { findApptainer } from '../support/apptainer.ts'
import { describeAttacks } from '../support/attacks/describe-attacks.ts'

const found = findApptainer()

if (typeof found === 'string') {
  console.log(`apptainer cannot run here: ${found}`)
  test('attacks on Apptainer', (context) => context.skip(`stands for the attack suite: ${found}`))
} else {
  afterAll(() => found[Symbol.dispose]())
  const { program, image } = found
  describeAttacks({ name: 'Apptainer', kind: 'apptainer', settings: { program, image } })
}
