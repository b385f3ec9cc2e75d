import { dirname, join, relative } from 'node:path'

/** Allowed imports of each folder, besides itself: whole folders of `src`, or single files of them. `*` is everything in `src`. */
export const mayImport: Readonly<Record<string, readonly string[]>> = {
  lib: [],
  model: ['lib'],
  api: ['model', 'lib'],
  trajectory: ['model', 'lib'],
  store: ['model', 'lib'],
  train: ['api', 'trajectory', 'model', 'lib'],
  gateway: ['model', 'lib', 'store/store.ts'],
  client: ['api', 'model', 'lib'],
  node: ['gateway', 'trajectory', 'store', 'client', 'model', 'lib'],
  server: ['api', 'trajectory', 'model', 'lib', 'store/dispatch/port.ts', 'store/files.ts', 'store/store-errors.ts'],
  config: [
    'api/fields.ts',
    'node/session/stages.ts',
    'gateway/dialects/index.ts',
    'gateway/upstreams/index.ts',
    'trajectory/builders/index.ts',
    'trajectory/evaluators/index.ts',
    'trajectory/exporters/index.ts',
    'node/sandbox/runtimes/index.ts',
    'node/harness/presets/index.ts',
    'model',
    'lib',
  ],
  compose: ['api', 'client', 'config', 'gateway', 'model', 'node', 'server', 'store', 'train', 'trajectory', 'lib'],
  cli: ['*'],
  'index.ts': ['*'],
  packages: [],
  web: ['client', 'api', 'model'],
}

/**
 * Plug folders: their interface file, and the shared files that every implementation may import. Beyond that an
 * implementation imports `model`, `lib` and its own helpers (`script.ts` those named `script-*.ts` or below `script/`);
 * only `index.ts` knows more than one implementation.
 */
export const plugFolders: Readonly<Record<string, { interfaceFile: string; shared: readonly string[] }>> = {
  'gateway/dialects': { interfaceFile: 'dialect.ts', shared: ['gateway/dialects/wire', 'gateway/wire-event.ts'] },
  'gateway/upstreams': { interfaceFile: 'upstream.ts', shared: ['gateway/upstreams/wire', 'gateway/wire-event.ts'] },
  'gateway/quirks': { interfaceFile: 'quirk.ts', shared: [] },
  'trajectory/builders': { interfaceFile: 'builder.ts', shared: ['trajectory/graph'] },
  'trajectory/evaluators': { interfaceFile: 'evaluator.ts', shared: ['trajectory/grading'] },
  'trajectory/exporters': {
    interfaceFile: 'exporter.ts',
    shared: [
      'trajectory/graph',
      'trajectory/build-session.ts',
      'trajectory/score-session.ts',
      'trajectory/sample-fields.ts',
      'trajectory/sampling-fields.ts',
      'trajectory/to-trace.ts',
    ],
  },
  'node/sandbox/runtimes': { interfaceFile: 'runtime.ts', shared: ['node/sandbox/linux'] },
  'node/harness/presets': { interfaceFile: 'harness.ts', shared: [] },
}

/** Why file `from` must not import file `to`; undefined when it may. Paths are relative to the repository root. */
export function whyForbidden(from: string, to: string): string | undefined {
  const source = placeOf(from)
  if (source === undefined || isTestCode(from)) return undefined
  const target = placeOf(to)
  if (target === undefined) return `${from} ships, so it cannot import ${to}, which does not`
  if (isTestCode(to)) return `only tests import ${to}`
  return whyForbiddenPlug(source, target) ?? whyForbiddenFolder(source, target)
}

function whyForbiddenFolder(source: string, target: string): string | undefined {
  const folder = topOf(source)
  const allowed = mayImport[folder]
  if (allowed === undefined) return `${folder} has no row in scripts/import-rules.ts`
  if (topOf(target) === folder || allowed.some((entry) => covers(entry, target))) return undefined
  return `${folder} may import ${allowed.length === 0 ? 'nothing of ours' : allowed.join(', ')}; not ${target}`
}

function whyForbiddenPlug(source: string, target: string): string | undefined {
  const [folder, plug] = Object.entries(plugFolders).find(([candidate]) => covers(candidate, source)) ?? []
  if (folder === undefined || plug === undefined || source === `${folder}/index.ts`) return undefined
  if (plug.shared.some((entry) => covers(entry, source))) return undefined
  const interfaceFile = `${folder}/${plug.interfaceFile}`
  if (covers(folder, target) && !plug.shared.some((entry) => covers(entry, target))) {
    if (target === interfaceFile || isOwnHelper(relative(folder, source), relative(folder, target))) return undefined
    return `an implementation never imports a sibling; not ${target}`
  }
  if (source === interfaceFile || ['model', 'lib', ...plug.shared].some((entry) => covers(entry, target)))
    return undefined
  return `an implementation imports ${[interfaceFile, 'model', 'lib', ...plug.shared].join(', ')}; not ${target}`
}

function isOwnHelper(implementation: string, helper: string): boolean {
  const [own, other] = [stemOf(implementation), stemOf(helper)]
  return other === own || other.startsWith(`${own}-`)
}

/** A file's path within `src`, or with its workspace in front; undefined for scripts, benches and tests, which may import anything. */
function placeOf(path: string): string | undefined {
  if (path.startsWith('src/')) return path.slice('src/'.length)
  return path.startsWith('web/') || path.startsWith('packages/') ? path : undefined
}

function isTestCode(path: string): boolean {
  return /\.(test|contract)\.tsx?$/.test(path)
}

function covers(entry: string, path: string): boolean {
  return entry === '*' || path === entry || path.startsWith(`${entry}/`)
}

function topOf(path: string): string {
  return path.split('/')[0]!
}

function stemOf(path: string): string {
  return topOf(path).replace(/\.tsx?$/, '')
}

/** The part of the linter's plugin interface that is used here; its package exports no types for it. */
interface RuleContext {
  filename: string
  report(problem: { node: Specifier; message: string }): void
}
interface Specifier {
  type: string
  value?: unknown
}
interface WithSource {
  source: Specifier | null
}

const root = dirname(import.meta.dirname)

/** Static, dynamic and type imports, re-exports, and files named by `new URL('./worker.ts', import.meta.url)`. */
function create(context: RuleContext) {
  const check = (node: Specifier | null | undefined) => {
    if (typeof node?.value !== 'string' || !node.value.startsWith('.')) return
    const message = whyForbidden(
      relative(root, context.filename),
      relative(root, join(dirname(context.filename), node.value)),
    )
    if (message !== undefined) context.report({ node, message })
  }
  const checkSource = (node: WithSource) => check(node.source)
  return {
    ImportDeclaration: checkSource,
    ImportExpression: checkSource,
    ExportAllDeclaration: checkSource,
    ExportNamedDeclaration: checkSource,
    TSImportType: checkSource,
    'NewExpression[callee.name="URL"]': (node: { arguments: Specifier[] }) => {
      if (/\.tsx?$/.test(String(node.arguments[0]?.value))) check(node.arguments[0])
    },
  }
}

/** An oxlint plugin; `.oxlintrc.json` loads it. */
export default { meta: { name: 'polar' }, rules: { imports: { create } } }
