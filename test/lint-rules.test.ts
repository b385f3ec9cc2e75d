import { spawnSync } from 'node:child_process'
import { cp, mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { mayImport, plugFolders } from '../scripts/import-rules.ts'

const root = dirname(import.meta.dirname)

/** One violation each: a file of src, its source, and the violated rule. */
const forbidden: [file: string, source: string, rule: string][] = [
  ['lib/a.ts', reexport('../model/turn.ts'), 'polar(imports)'],
  ['model/a.ts', reexport('../store/store.ts'), 'polar(imports)'],
  ['api/a.ts', reexport('../store/store.ts'), 'polar(imports)'],
  ['trajectory/a.ts', reexport('../gateway/app.ts'), 'polar(imports)'],
  ['store/a.ts', reexport('../gateway/app.ts'), 'polar(imports)'],
  ['../packages/tiny-engine/src/a.ts', reexport('../../../src/lib/versions.ts'), 'polar(imports)'],
  ['compose/a.ts', reexport('../cli/command.ts'), 'polar(imports)'],
  ['gateway/a.ts', reexport('../store/call-log/writer.ts'), 'polar(imports)'],
  ['gateway/capture/deep.ts', reexport('../../store/call-log/writer.ts'), 'polar(imports)'],
  ['gateway/engine.ts', reexport('../../packages/tiny-engine/src/app.ts'), 'polar(imports)'],
  ['client/a.ts', reexport('../server/app.ts'), 'polar(imports)'],
  ['node/a.ts', reexport('../server/app.ts'), 'polar(imports)'],
  ['node/engine.ts', reexport('../../packages/tiny-engine/src/app.ts'), 'polar(imports)'],
  ['server/a.ts', reexport('../gateway/app.ts'), 'polar(imports)'],
  ['server/database.ts', reexport('../store/database.ts'), 'polar(imports)'],
  ['server/routes/query.ts', reexport('../../store/dispatch/queries/tasks.ts'), 'polar(imports)'],
  ['config/a.ts', reexport('../node/sandbox/runtimes/docker.ts'), 'polar(imports)'],
  ['../web/src/a.ts', reexport('../../src/server/app.ts'), 'polar(imports)'],
  ['unheard-of/a.ts', reexport('../lib/sse.ts'), 'polar(imports)'],
  ['cli/a.ts', reexport('../../test/support/fake-upstream.ts'), 'polar(imports)'],
  ['cli/b.ts', reexport('../gateway/dialects/dialect.contract.ts'), 'polar(imports)'],

  ['gateway/static.ts', `import { x } from '../cli/x.ts'\nexport const y: unknown = x\n`, 'polar(imports)'],
  ['gateway/types.ts', `import type { X } from '../cli/x.ts'\nexport type Y = X[]\n`, 'polar(imports)'],
  ['gateway/all.ts', `export * from '../cli/x.ts'\n`, 'polar(imports)'],
  ['gateway/dynamic.ts', `export const load = () => import('../cli/x.ts')\n`, 'polar(imports)'],
  ['gateway/inline.ts', `export type Y = import('../cli/x.ts').X\n`, 'polar(imports)'],
  ['gateway/worker.ts', `export const url = new URL('../cli/worker.ts', import.meta.url)\n`, 'polar(imports)'],

  ...Object.keys(plugFolders).map((folder): [string, string, string] => [
    `${folder}/one.ts`,
    reexport('./another.ts'),
    'polar(imports)',
  ]),
  ['gateway/dialects/up.ts', reexport('../detect.ts'), 'polar(imports)'],
  ['gateway/dialects/dialect.ts', reexport('./one.ts'), 'polar(imports)'],
  ['gateway/upstreams/vllm-render.ts', reexport('./sglang.ts'), 'polar(imports)'],

  ['gateway/environment.ts', `export const home = process.env['HOME']\n`, 'eslint(no-restricted-properties)'],
  [
    'gateway/taken-apart.ts',
    `const { env } = process\nexport const home = env['HOME']\n`,
    'eslint(no-restricted-properties)',
  ],
  [
    'gateway/module.ts',
    `import { env } from 'node:process'\nexport const all = env\n`,
    'eslint(no-restricted-imports)',
  ],
  ['gateway/print.ts', `console.log('hello')\n`, 'eslint(no-console)'],
  ['gateway/default.ts', `export default 1\n`, 'import(no-default-export)'],
  [
    'gateway/floating.ts',
    `async function go() {}\nexport function start() {\n  go()\n}\n`,
    'typescript(no-floating-promises)',
  ],
  [
    'gateway/open-switch.ts',
    `export function f(kind: 'a' | 'b'): number {\n  switch (kind) {\n    case 'a':\n      return 1\n  }\n  return 2\n}\n`,
    'typescript(switch-exhaustiveness-check)',
  ],
]

const allowed: [file: string, source: string][] = [
  ['model/a.ts', reexport('../lib/sse.ts')],
  ['api/a.ts', reexport('../model/turn.ts')],
  ['trajectory/a.ts', reexport('../model/turn.ts')],
  ['store/call-log/a.ts', reexport('../../model/turn.ts', '../store.ts')],
  ['../packages/tiny-engine/src/a.ts', reexport('./policies/index.ts')],
  ['compose/a.ts', reexport('../gateway/gateway.ts', '../config/load-config.ts')],
  ['gateway/a.ts', reexport('../store/store.ts', '../model/turn.ts', './detect.ts')],
  ['gateway/capture/deep.ts', reexport('../../store/store.ts', '../detect.ts')],
  ['client/a.ts', reexport('../api/routes.ts')],
  [
    'node/a.ts',
    reexport('../gateway/app.ts', '../trajectory/build.ts', '../store/call-log/reader.ts', '../client/client.ts'),
  ],
  ['server/a.ts', reexport('../api/routes.ts', '../trajectory/build.ts', '../store/dispatch/port.ts')],
  [
    'config/a.ts',
    `${reexport('../node/sandbox/runtimes/index.ts', '../model/task.ts')}export const home = process.env['HOME']\n`,
  ],
  [
    'cli/a.ts',
    `${reexport('../compose/open-node.ts', '../gateway/app.ts', '../config/load.ts')}console.log(process.env['HOME'])\n`,
  ],
  ['index.ts', reexport('./gateway/app.ts')],
  ['../web/src/a.ts', reexport('../../src/client/client.ts')],
  ['gateway/dialects/one.ts', reexport('./dialect.ts', '../../model/turn.ts', '../../lib/sse.ts')],
  ['gateway/dialects/index.ts', reexport('./one.ts', './another.ts')],
  ['gateway/upstreams/vllm.ts', reexport('./upstream.ts', './vllm-render.ts', './vllm/parse.ts', './wire/probe.ts')],
  ['gateway/upstreams/wire/probe.ts', reexport('../upstream.ts', './engine-http.ts')],
  [
    'gateway/dialects/one.test.ts',
    reexport('./another.ts', '../../cli/main.ts', '../../../test/support/fake-upstream.ts'),
  ],
  ['gateway/template.ts', `export const url = new URL('../../assets/template.txt', import.meta.url)\n`],
]

describe('a file that violates a rule fails the lint', () => {
  const linted = lintTree(forbidden)

  test('the linter exits with 1', () => expect(linted().exitCode).toBe(1))

  test.each(forbidden)('%s: %j', (file, _source, rule) => {
    expect(linted().rules.get(join('src', file)) ?? []).toContain(rule)
  })
})

describe('a file that follows the rules passes the lint', () => {
  const linted = lintTree(allowed)

  test('the linter reports no violation', () => {
    expect(linted()).toEqual({ exitCode: 0, rules: new Map() })
  })
})

test('every folder of src has an entry in mayImport', async () => {
  const entries = await readdir(join(root, 'src'))
  expect(entries.filter((entry) => !(entry in mayImport))).toEqual([])
})

function reexport(...specifiers: string[]): string {
  return specifiers.map((specifier, index) => `export { x as x${index} } from '${specifier}'\n`).join('')
}

interface LintResult {
  exitCode: number | null
  /** Violated rules by file. */
  rules: Map<string, string[]>
}

/** Lints files in a separate tree with this repository's configuration, once for all tests of a suite. */
function lintTree(files: readonly (readonly [file: string, source: string, ...unknown[]])[]): () => LintResult {
  let directory: string
  let result: LintResult
  beforeAll(async () => {
    directory = await mkdtemp(join(tmpdir(), 'polar-lint-'))
    for (const path of ['.oxlintrc.json', 'tsconfig.json', 'scripts/import-rules.ts']) {
      await cp(join(root, path), join(directory, path))
    }
    await symlink(join(root, 'node_modules'), join(directory, 'node_modules'))
    for (const [file, source] of files) {
      const path = join(directory, 'src', file)
      await mkdir(dirname(path), { recursive: true })
      await writeFile(path, source)
    }
    result = runOxlint(directory)
  })
  afterAll(async () => rm(directory, { recursive: true, force: true }))
  return () => result
}

function runOxlint(directory: string): LintResult {
  const args = [join(root, 'node_modules/.bin/oxlint'), '--type-aware', '--format', 'json', 'src', 'packages', 'web']
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { cwd: directory, encoding: 'utf8' })
  if (!stdout.startsWith('{')) throw new Error(`oxlint said: ${stdout}${stderr}`)
  const { diagnostics } = JSON.parse(stdout) as { diagnostics: { filename: string; code: string }[] }
  const rules = new Map<string, string[]>()
  for (const { filename, code } of diagnostics) rules.set(filename, [...(rules.get(filename) ?? []), code])
  return { exitCode: status, rules }
}
