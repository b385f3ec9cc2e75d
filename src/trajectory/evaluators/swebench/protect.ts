import { matchesGlobs } from '../../grading/globs.ts'

/** Left by programs, not written by anybody. Never part of a patch. */
export const DEFAULT_EXCLUDE: readonly string[] = [
  '__pycache__',
  '*.pyc',
  '*.pyo',
  '.pytest_cache',
  '.mypy_cache',
  '.ruff_cache',
  '.hypothesis',
  '.tox',
  '.nox',
  '.venv',
  'node_modules',
  '*.orig',
  '*.rej',
]

/**
 * Files that decide what runs and how it is reported. They are graded as the repository has them, unless the gold patch
 * changes them too. An agent's own tests are here as well: they are no part of the grade, and could change that of others.
 */
export const DEFAULT_PROTECTED: readonly string[] = [
  // Python: what configures the runner, and what the interpreter loads by itself.
  'conftest.py',
  'pytest.ini',
  '.pytest.ini',
  'pytest.toml',
  '.pytest.toml',
  'tox.ini',
  'setup.cfg',
  'pyproject.toml',
  'noxfile.py',
  '.coveragerc',
  'sitecustomize.py',
  'usercustomize.py',
  '*.pth',
  '*.egg-info',
  '*.dist-info',
  '*.egg-link',
  'pyvenv.cfg',
  'test_*.py',
  '*_test.py',
  // JavaScript.
  'jest.config.*',
  'jest.setup.*',
  'vitest.config.*',
  'vitest.workspace.*',
  'vite.config.*',
  'babel.config.*',
  '.babelrc*',
  '.mocharc*',
  'mocha.opts',
  'karma.conf.*',
  'jasmine.json',
  '.npmrc',
  '.yarnrc*',
  '.pnp.*',
  '*.test.*',
  '*.spec.*',
  '__tests__',
  '__mocks__',
  '__snapshots__',
  // Go. A test file may take over the whole run of its package.
  'go.mod',
  'go.sum',
  'go.work',
  'go.work.sum',
  'vendor/modules.txt',
  '*_test.go',
]

/** Modules that, in a folder Python looks into first, would be loaded in place of those that run and report tests. */
const SHADOWED = new Set(
  `pytest _pytest pluggy iniconfig py unittest doctest nose tox xdist coverage builtins sys os io re abc ast
argparse codecs collections contextlib copy dataclasses enum functools importlib inspect itertools json
linecache logging operator pathlib pdb pkgutil platform pprint random runpy shlex shutil signal site
subprocess tempfile textwrap threading time traceback types typing warnings weakref zipimport _colorize
tomllib exceptiongroup colorama`.split(/\s/),
)

/** One file that a patch changed, as git says it. */
export interface Change {
  path: string
  status: 'A' | 'D' | 'M' | 'T'
  /** Octal; of the new file. */
  mode: string
  /** Git's name for the new content. */
  blob: string
}

export type Decision =
  | { kind: 'take' }
  /** Only parts of it are taken. */
  | { kind: 'merge' }
  | { kind: 'drop'; why: 'excluded' | 'protected' | 'test' | 'shadow' | 'submodule' | 'environment' | 'name' }

export interface Rules {
  exclude: readonly string[]
  protected: readonly string[]
  /** Files of the gold patch are never protected. */
  goldPaths: ReadonlySet<string>
  /** Files of the test patch, and those that the tests to pass are in. */
  testPaths: ReadonlySet<string>
  /** What the test command runs. */
  command: string
  /** Whether the repository had a file of that name, or one below it. */
  existed: (path: string) => boolean
  /** Whether the commit that all is compared with had that file. */
  isInBase: (path: string) => boolean
}

/** What is done with each file that an agent changed. */
export function createPolicy(rules: Rules): (change: Change) => Decision {
  const isExcluded = matchesGlobs(rules.exclude)
  const isProtected = matchesGlobs([...rules.protected, ...programsOf(rules.command)])
  const roots = importRoots(rules)
  return (change) => {
    const { path, mode, status } = change
    // No name at all for us, so it cannot be told what it is.
    if (path.includes('\ufffd')) return { kind: 'drop', why: 'name' }
    if (isExcluded(path)) return { kind: 'drop', why: 'excluded' }
    if (mode === '160000') return { kind: 'drop', why: 'submodule' }
    if (rules.testPaths.has(path) && !rules.goldPaths.has(path)) return { kind: 'drop', why: 'test' }
    // An image's own file that an ignore list of the agent's hides is not one that it deleted.
    if (status === 'D' && !rules.isInBase(path)) return { kind: 'drop', why: 'environment' }
    if (rules.goldPaths.has(path)) return { kind: 'take' }
    if (isProtected(path)) return { kind: 'drop', why: 'protected' }
    if (status === 'A' && shadows(path, roots, rules.existed)) return { kind: 'drop', why: 'shadow' }
    return path.split('/').at(-1) === 'package.json' ? { kind: 'merge' } : { kind: 'take' }
  }
}

/** Programs of the repository that a command runs, such as `./tests/runtests.py` and `bin/test`; a Makefile for make. */
function programsOf(command: string): string[] {
  const files = command
    .split(/\s+/)
    .filter((word) => /^(\.\/)?[\w.-]+\/[\w./-]+$|^\.\/[\w.-]+$/.test(word))
    .map((word) => `/${word.replace(/^\.\//, '')}`)
  const isMake = /(^|[\s;&|])make(\s|$)/.test(command)
  return [...files, ...(isMake ? ['/Makefile', '/GNUmakefile', '/makefile'] : [])]
}

/** Folders that a test runner puts first on Python's path: the top, those of tests, and above these the first no package. */
function importRoots({ testPaths, existed }: Rules): ReadonlySet<string> {
  const roots = new Set(['', 'src', 'lib'])
  for (const file of testPaths) {
    let folder = parentOf(file)
    roots.add(folder)
    while (folder !== '' && existed(`${folder}/__init__.py`)) folder = parentOf(folder)
    roots.add(folder)
  }
  return roots
}

function shadows(path: string, roots: ReadonlySet<string>, existed: (path: string) => boolean): boolean {
  const parts = path.split('/')
  return parts.some((part, index) => {
    const isLast = index === parts.length - 1
    const module = isLast ? /^(.+?)\.(?:py|so|pyd|[\w-]+\.so)$/.exec(part)?.[1] : part
    if (module === undefined || !SHADOWED.has(module) || !roots.has(parts.slice(0, index).join('/'))) return false
    return !existed(parts.slice(0, index + 1).join('/'))
  })
}

function parentOf(path: string): string {
  return path.slice(0, Math.max(0, path.lastIndexOf('/')))
}

/** What package.json says of how tests run; the rest of it is the agent's. */
const RUNNER_KEYS = ['scripts', 'jest', 'mocha', 'vitest', 'ava', 'nyc', 'c8', 'babel', 'jasmine', 'tap', 'workspaces']

/** Undefined when either is not what npm would read; then the base's stays. */
export function mergePackageJson(base: string, agents: string): string | undefined {
  const [from, to] = [toObject(base), toObject(agents)]
  if (from === undefined || to === undefined) return undefined
  for (const key of RUNNER_KEYS) {
    if (Object.hasOwn(from, key)) to[key] = from[key]
    else delete to[key]
  }
  return `${JSON.stringify(to, undefined, 2)}\n`
}

function toObject(text: string): Record<string, unknown> | undefined {
  try {
    const value: unknown = JSON.parse(text)
    return typeof value === 'object' && value !== null && !Array.isArray(value)
      ? (value as Record<string, unknown>)
      : undefined
  } catch {
    return undefined
  }
}
