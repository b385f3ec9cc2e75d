// Builds the package of the tiny engine into packages/tiny-engine/dist, with the package.json that is published.
import { execFileSync } from 'node:child_process'
import { copyFileSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { dirname, join } from 'node:path'

const root = dirname(import.meta.dirname)
const folder = join(root, 'packages/tiny-engine')
const dist = join(folder, 'dist')

rmSync(dist, { recursive: true, force: true })
execFileSync('tsc', ['-p', join(folder, 'tsconfig.build.json')], { cwd: root, stdio: 'inherit' })
const manifest = JSON.parse(readFileSync(join(folder, 'package.json'), 'utf8')) as Record<string, unknown>
// In the repository the entry of the package is TypeScript; Node does not run TypeScript below node_modules.
const entry = (name: string) => ({ types: `./${name}.d.ts`, default: `./${name}.js` })
const exports = { '.': entry('index'), './model-package': entry('model-package') }
writeFileSync(join(dist, 'package.json'), `${JSON.stringify({ ...manifest, exports }, undefined, 2)}\n`)
copyFileSync(join(root, 'LICENSE'), join(dist, 'LICENSE'))
