import { parseJsonObject } from '../../lib/json/json-text.ts'
import { matchesGlobs } from './globs.ts'
import { SHADOWED_MODULES } from './protected-files.ts'

/** One file that differs between the grader's and the agent's repository, as git reports it. */
export interface Change {
  path: string
  status: 'A' | 'D' | 'M' | 'T'
  /** Octal mode and object name of the agent's file. */
  mode: string
  blob: string
  /** Octal mode and object name of the grader's file; zeros for a new file. */
  oldMode: string
  oldBlob: string
}

/** Mode of a repository within the repository. */
const SUBMODULE = '160000'

export type DropReason = 'excluded' | 'protected' | 'test' | 'shadow' | 'submodule' | 'environment' | 'name' | 'link'

export type ChangeDecision =
  | { kind: 'take' }
  /** Only parts of the agent's file are used. */
  | { kind: 'merge' }
  | { kind: 'drop'; why: DropReason }

export interface Rules {
  exclude: readonly string[]
  protected: readonly string[]
  /** Globs of protected files that the agent may change. */
  editable: readonly string[]
  /** Files of the gold patch are never protected. */
  goldPaths: ReadonlySet<string>
  /** Files of the test patch, and files of the tests that must pass. */
  testPaths: ReadonlySet<string>
  /** The test command. */
  command: string
  /** Files of the state that changes are compared with. */
  basePaths: ReadonlySet<string>
}

/** Returns a function that decides for each changed file whether the agent's version is graded. */
export function createPolicy(rules: Rules): (change: Change) => ChangeDecision {
  const base = toBase(rules.basePaths)
  const isExcluded = matchesGlobs(rules.exclude)
  const isEditable = matchesGlobs(rules.editable)
  const isProtected = matchesGlobs([
    ...rules.protected.filter((glob) => glob !== TEST_FOLDER),
    ...programsOf(rules.command, base),
  ])
  const isInTestFolder = rules.protected.includes(TEST_FOLDER) ? findTestFolders(rules) : () => false
  const roots = importRoots(rules.testPaths, base)
  return (change) => {
    const { path, mode, oldMode, status } = change
    // The name is not UTF-8, so it cannot be compared with the rules.
    if (path.includes('\uFFFD')) return { kind: 'drop', why: 'name' }
    if (isExcluded(path)) return { kind: 'drop', why: 'excluded' }
    if (mode === SUBMODULE || oldMode === SUBMODULE) return { kind: 'drop', why: 'submodule' }
    if (rules.testPaths.has(path) && !rules.goldPaths.has(path)) return { kind: 'drop', why: 'test' }
    // The agent's ignore list may hide a file of the image. That does not delete the file.
    if (status === 'D' && !base.files.has(path)) return { kind: 'drop', why: 'environment' }
    if (rules.goldPaths.has(path) || isEditable(path)) return { kind: 'take' }
    if (status === 'A' && shadows(path, roots, base)) return { kind: 'drop', why: 'shadow' }
    if (isProtected(path) || isInTestFolder(path)) return { kind: 'drop', why: 'protected' }
    return path.split('/').at(-1) === 'package.json' ? { kind: 'merge' } : { kind: 'take' }
  }
}

interface Base {
  files: ReadonlySet<string>
  folders: ReadonlySet<string>
}

function toBase(files: ReadonlySet<string>): Base {
  return { files, folders: new Set([...files].flatMap(foldersOf)) }
}

/** Returns the folders above a path. */
export function foldersOf(path: string): string[] {
  const parts = path.split('/')
  return parts.slice(1).map((_, index) => parts.slice(0, index + 1).join('/'))
}

/** The entry of the protected files that is applied per folder. */
const TEST_FOLDER = 'test'
const looksLikeTest = matchesGlobs(['test_*', '*_test.*', '*.test.*', '*Test.*', '*Tests.*', 'tests.py', 'conftest.py'])

/** Whether a path is in a folder named `test`, other than a Python package of that name without tests. */
function findTestFolders({ basePaths, testPaths }: Rules): (path: string) => boolean {
  const withTests = new Set<string>(
    [...basePaths, ...testPaths]
      .filter((path) => testPaths.has(path) || looksLikeTest(nameOf(path)))
      .flatMap(foldersOf),
  )
  const isSource = (folder: string): boolean => basePaths.has(`${folder}/__init__.py`) && !withTests.has(folder)
  return (path) => [...foldersOf(path), path].some((folder) => nameOf(folder) === TEST_FOLDER && !isSource(folder))
}

const PROGRAM = /^(\.\/)?[\w.-]+\/[\w./-]+$|^\.\/[\w.-]+$/
const SHELLS = new Set(['bash', 'sh', 'dash', 'zsh', 'source', '.'])

/**
 * Returns the programs of the repository that a command runs, such as `./tests/runtests.py`, `bin/test` and the script of
 * `bash run.sh`; for make, the Makefile.
 */
function programsOf(command: string, base: Base): string[] {
  const words = command.split(/[\s;&|()]+/).filter((word) => word !== '')
  const scripts = words.filter((word, index) => SHELLS.has(words[index - 1] ?? '') && base.files.has(trimDot(word)))
  const programs = words.filter((word) => PROGRAM.test(word))
  const isMake = words.includes('make')
  return [
    ...[...programs, ...scripts].map((word) => `/${trimDot(word)}`),
    ...(isMake ? ['/Makefile', '/GNUmakefile', '/makefile'] : []),
  ]
}

function trimDot(path: string): string {
  return path.replace(/^\.\//, '')
}

/**
 * Returns the folders that a test runner puts first on Python's path: the root, test folders, and the nearest folder
 * above a test that is not a package.
 */
function importRoots(testPaths: ReadonlySet<string>, { files }: Base): ReadonlySet<string> {
  const roots = new Set(['', 'src', 'lib'])
  for (const file of testPaths) {
    let folder = parentOf(file)
    roots.add(folder)
    while (folder !== '' && files.has(`${folder}/__init__.py`)) folder = parentOf(folder)
    roots.add(folder)
  }
  return roots
}

function shadows(path: string, roots: ReadonlySet<string>, { files, folders }: Base): boolean {
  const parts = path.split('/')
  return parts.some((part, index) => {
    const isLast = index === parts.length - 1
    const module = isLast ? /^(.+?)\.(?:py|so|pyd|[\w-]+\.so)$/.exec(part)?.[1] : part
    if (module === undefined || !SHADOWED_MODULES.has(module)) return false
    if (!roots.has(parts.slice(0, index).join('/'))) return false
    const own = parts.slice(0, index + 1).join('/')
    return !files.has(own) && !folders.has(own)
  })
}

function nameOf(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1)
}

function parentOf(path: string): string {
  return path.slice(0, Math.max(0, path.lastIndexOf('/')))
}

/** Keys of package.json that configure test runners. Other keys are graded as the agent left them. */
const RUNNER_KEYS = [
  'scripts',
  'jest',
  'mocha',
  'vitest',
  'ava',
  'nyc',
  'c8',
  'babel',
  'jasmine',
  'tap',
  'wireit',
  'nx',
  'workspaces',
]

/** Returns the agent's package.json with the base's runner keys. Undefined if either text is not a JSON object. */
export function mergePackageJson(base: string, agents: string): string | undefined {
  const [from, to] = [parseJsonObject(base), parseJsonObject(agents)]
  if (from === undefined || to === undefined) return undefined
  for (const key of RUNNER_KEYS) {
    if (Object.hasOwn(from, key)) to[key] = from[key]
    else delete to[key]
  }
  // Serialized again, so that every parser reads a duplicate key in the same way.
  return `${JSON.stringify(to, undefined, 2)}\n`
}
