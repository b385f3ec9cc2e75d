// Copies the programs in other languages into dist, where `tsc` does not put them.
import { cpSync, globSync } from 'node:fs'
import { dirname, join } from 'node:path'

const root = dirname(import.meta.dirname)
for (const file of globSync('**/*.{cjs,mjs,pl,py,sh}', { cwd: join(root, 'src') }))
  cpSync(join(root, 'src', file), join(root, 'dist', file))
