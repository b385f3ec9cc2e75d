import { afterAll, test } from 'vitest'
import { runtimes } from '../../src/node/sandbox/runtimes/index.ts'
import { findApptainer } from '../support/apptainer.ts'
import { describeEscapes } from '../support/escapes.ts'

const isRoot = process.getuid?.() === 0
/** Set by escape-apptainer-user.test.ts, which no longer runs as root at this point. */
const found = globalThis.sharedApptainer ?? findApptainer()

if (typeof found === 'string') {
  console.log(`apptainer cannot run here: ${found}`)
  test('escapes from apptainer', (context) => context.skip(found))
} else {
  afterAll(() => found[Symbol.dispose]())
  const { program, image } = found
  const config = { kind: 'apptainer', program, image }
  describeEscapes({
    name: `apptainer ${isRoot ? 'as root' : 'as an ordinary user'}`,
    image,
    create: (dir) => runtimes.create(runtimes.config.parse(config), { dir, now: Date.now }),
    createScript: `const runtime = runtimes.create(runtimes.config.parse(${JSON.stringify(config)}), { dir, now: Date.now })`,
    ...(isRoot && { uid: 1_900_000 }),
  })
}
