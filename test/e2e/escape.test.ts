import { runtimes } from '../../src/node/sandbox/runtimes/index.ts'
import { describeEscapes } from '../support/escapes.ts'
import { bubblewrapConfig } from '../support/bubblewrap.ts'

const isRoot = process.getuid?.() === 0

describeEscapes({
  name: `bubblewrap ${isRoot ? 'as root' : 'as an ordinary user'}`,
  create: (dir) => runtimes.create(runtimes.config.parse(bubblewrapConfig), { dir, now: Date.now }),
  createScript: `const runtime = runtimes.create(runtimes.config.parse(${JSON.stringify(bubblewrapConfig)}), { dir, now: Date.now })`,
  ...(isRoot && { uid: 1_900_000 }),
})
