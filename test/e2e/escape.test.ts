import { runtimes } from '../../src/node/runtimes/index.ts'
import { describeEscapes } from '../support/escapes.ts'

const isRoot = process.getuid?.() === 0

describeEscapes({
  name: `bubblewrap ${isRoot ? 'as root' : 'as an ordinary user'}`,
  create: (dir) => runtimes.create(runtimes.config.parse({ kind: 'bubblewrap' }), { dir, now: Date.now }),
  createScript: `const runtime = runtimes.create(runtimes.config.parse({ kind: 'bubblewrap' }), { dir, now: Date.now })`,
  ...(isRoot && { uid: 1_900_000 }),
})
