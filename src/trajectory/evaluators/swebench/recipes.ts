import { RolloutError } from '../../../model/failure.ts'
import type { EvalType } from './report.ts'
import type { Instance } from './instance.ts'
import { findLogParser, logParserNames } from './log-parsers.ts'
import type { LogParser } from './log.ts'

/** Test runners that canaries support. */
export type Runner = 'pytest' | 'unittest' | 'sympy' | 'jest' | 'vitest' | 'mocha' | 'node' | 'go'

/** How to run the tests of an instance and parse their output. */
export interface Recipe {
  /** Shell lines that run before the tests in the same shell. */
  setup: string
  /** Shell command. The tests replace `{tests}`, or are appended. */
  command: string
  /** Returns the command's arguments for test files. Some files have none. */
  toDirectives(files: readonly string[]): string[]
  parse: LogParser
  parserName: string
  evalType: EvalType
  runner?: Runner
}

export interface RecipeOverrides {
  test_cmd?: string
  log_parser?: string
  setup?: readonly string[]
}

interface Known {
  command: string
  parser: string
  /** Commands of versions that differ. */
  versions?: Readonly<Record<string, string>>
}

const PYTEST = 'pytest -rA'
const CLASSIC = 'pytest -rA -vv -o console_output_style=classic --tb=no'
const DJANGO = './tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1'
const SYMPY = "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose"

/** Commands of SWE-bench and SWE-Gym. Names are lower case, because rows of SWE-Gym use both cases. */
const KNOWN: Readonly<Record<string, Known>> = {
  'astropy/astropy': {
    command: PYTEST,
    parser: 'pytest_v2',
    versions: Object.fromEntries(['0.1', '0.2', '0.3', '0.4', '1.1', '1.2', '1.3'].map((each) => [each, CLASSIC])),
  },
  'django/django': { command: DJANGO, parser: 'django', versions: { '1.9': './tests/runtests.py --verbosity 2' } },
  'marshmallow-code/marshmallow': { command: PYTEST, parser: 'pytest' },
  'matplotlib/matplotlib': { command: PYTEST, parser: 'matplotlib' },
  'mwaskom/seaborn': { command: 'pytest --no-header -rA', parser: 'seaborn' },
  'pallets/flask': { command: PYTEST, parser: 'pytest' },
  'psf/requests': { command: PYTEST, parser: 'pytest_options' },
  'pvlib/pvlib-python': { command: PYTEST, parser: 'pytest' },
  'pydata/xarray': { command: PYTEST, parser: 'pytest' },
  'pydicom/pydicom': { command: PYTEST, parser: 'pytest_options' },
  'pylint-dev/astroid': { command: PYTEST, parser: 'pytest' },
  'pylint-dev/pylint': { command: PYTEST, parser: 'pytest_options' },
  'pytest-dev/pytest': { command: PYTEST, parser: 'pytest' },
  'pyvista/pyvista': { command: PYTEST, parser: 'pytest' },
  'scikit-learn/scikit-learn': { command: PYTEST, parser: 'pytest_v2' },
  'sphinx-doc/sphinx': { command: 'tox --current-env -epy39 -v --', parser: 'pytest_v2' },
  'sqlfluff/sqlfluff': { command: PYTEST, parser: 'pytest' },
  'sympy/sympy': { command: SYMPY, parser: 'sympy' },
  // SWE-Gym.
  'bokeh/bokeh': { command: 'pytest -rA -n0', parser: 'pytest' },
  'conan-io/conan': { command: 'pytest -n0 -rA', parser: 'pytest' },
  'dask/dask': { command: 'pytest -n0 -rA --color=no', parser: 'pytest' },
  'facebookresearch/hydra': { command: 'pytest -rA --tb=long', parser: 'pytest' },
  'getmoto/moto': { command: 'pytest -n0 -rA', parser: 'pytest' },
  'iterative/dvc': { command: PYTEST, parser: 'pytest' },
  'modin-project/modin': { command: 'pytest -n0 -rA', parser: 'pytest' },
  'pandas-dev/pandas': { command: 'pytest -rA --tb=long', parser: 'pytest' },
  'project-monai/monai': { command: PYTEST, parser: 'pytest' },
  'pydantic/pydantic': {
    command: 'pytest -rA --tb=short -vv -o console_output_style=classic --no-header',
    parser: 'pytest_pydantic',
  },
  'python/mypy': { command: 'pytest -n0 -rA -k', parser: 'pytest' },
}

/** Activates the environment of SWE-bench and SWE-Gym images. Other images do not have it. */
const CONDA = `if [ -f /opt/miniconda3/bin/activate ]; then
  . /opt/miniconda3/bin/activate && conda activate testbed
fi`
const DJANGO_SETUP = 'export LANG=en_US.UTF-8 LC_ALL=en_US.UTF-8 PYTHONIOENCODING=utf8 LANGUAGE=en_US:en'

/** Returns the recipe of an instance. Throws `config.invalid` if neither the settings nor the row determine it. */
export function toRecipe(instance: Instance, overrides: RecipeOverrides): Recipe {
  const known = KNOWN[instance.repo]
  const command =
    overrides.test_cmd ??
    instance.testCommand ??
    instance.script?.tests ??
    known?.versions?.[instance.version] ??
    known?.command ??
    guess(instance)
  if (command === undefined) throw invalid(instance, 'has no test command. Set test_cmd, or add it to the row.')
  const runner = detectRunner(command)
  const parserName = overrides.log_parser ?? instance.logParser ?? known?.parser ?? usualParser(command, runner)
  if (parserName === undefined) throw invalid(instance, `has no log parser. Set log_parser to one of ${choices()}.`)
  const parse = findLogParser(parserName)
  if (parse === undefined)
    throw invalid(instance, `has an unknown log_parser ${JSON.stringify(parserName)}. Use one of ${choices()}.`)
  const isScript =
    overrides.test_cmd === undefined && instance.testCommand === undefined && instance.script !== undefined
  const setup = isScript
    ? instance.script!.setup
    : `${CONDA}${instance.repo === 'django/django' ? `\n${DJANGO_SETUP}` : ''}`
  return {
    setup: [setup, ...(overrides.setup ?? [])].join('\n'),
    command,
    toDirectives: (files) =>
      isScript || namesTests(command, runner, files) ? [] : toDirectives(files, runner, instance),
    parse,
    parserName,
    evalType: instance.evalType,
    runner,
  }
}

export function detectRunner(command: string): Runner | undefined {
  if (/\bvitest\b/.test(command)) return 'vitest'
  if (/\bjest\b/.test(command)) return 'jest'
  if (/\bmocha\b/.test(command)) return 'mocha'
  if (/\bnode\b.*\s--test\b/.test(command)) return 'node'
  if (/\bgo\s+test\b/.test(command)) return 'go'
  if (/\bruntests\.py\b|-m\s+unittest\b|\bmanage\.py\s+test\b/.test(command)) return 'unittest'
  if (/(^|\s|\/)bin\/test\b/.test(command)) return 'sympy'
  if (/\b(pytest|py\.test|tox)\b/.test(command)) return 'pytest'
  return undefined
}

/** Whether a command already names its tests, as a row's script does. */
function namesTests(command: string, runner: Runner | undefined, files: readonly string[]): boolean {
  return files.some((file) => command.includes(file)) || (runner === 'go' && /\s\.{1,3}(\/|\s|$)/.test(command))
}

/** Returns the command with its tests. */
export function withDirectives(command: string, directives: readonly string[]): string {
  const list = directives.map(quote).join(' ')
  return command.includes('{tests}') ? command.replaceAll('{tests}', () => list) : `${command} ${list}`.trimEnd()
}

/** Endings of files that are not tests, from SWE-bench. */
const DATA = ['.json', '.png', 'csv', '.txt', '.md', '.jpg', '.jpeg', '.pkl', '.yml', '.yaml', '.toml']

function toDirectives(files: readonly string[], runner: Runner | undefined, instance: Instance): string[] {
  if (instance.repo === 'python/mypy') {
    const cases = [...instance.testPatch.matchAll(/\[case ([^\]\n]+)\]/g)].map(([, name]) => name)
    return [cases.join(' or ')]
  }
  const tests = files.filter((file) => !DATA.some((ending) => file.endsWith(ending)))
  switch (runner) {
    case 'unittest':
      return tests.filter((file) => file.endsWith('.py')).map((file) => toModule(file, instance.repo))
    case 'go': {
      const folders = tests.filter((file) => file.endsWith('.go')).map((file) => folderOf(file))
      return [...new Set(folders)]
    }
    case 'pytest':
    case 'sympy':
    case 'jest':
    case 'vitest':
    case 'mocha':
    case 'node':
    case undefined:
      return tests
  }
}

function toModule(file: string, repo: string): string {
  const path = repo === 'django/django' ? file.replace(/^tests\//, '') : file
  return path.replace(/\.py$/, '').replaceAll('/', '.')
}

function folderOf(file: string): string {
  const slash = file.lastIndexOf('/')
  return slash === -1 ? '.' : `./${file.slice(0, slash)}`
}

/** Derives the command from the test names, for an unknown repository. */
function guess({ FAIL_TO_PASS, PASS_TO_PASS, testFiles }: Instance): string | undefined {
  const name = FAIL_TO_PASS[0] ?? PASS_TO_PASS[0] ?? ''
  if (/\.py::/.test(name)) return PYTEST
  if (/^\w+ \([\w.]+\)$/.test(name)) return 'python -m unittest -v'
  if (name.startsWith('Test') && testFiles.some((file) => file.endsWith('_test.go'))) return 'go test -v'
  return undefined
}

function usualParser(command: string, runner: Runner | undefined): string | undefined {
  switch (runner) {
    case 'pytest':
    case 'jest':
    case 'vitest':
    case 'sympy':
    case 'unittest':
      return runner
    case 'mocha':
      return /\btap\b/.test(command) ? 'tap' : 'mocha'
    case 'node':
      return 'tap'
    case 'go':
      return /\s-json\b/.test(command) ? 'gotest_json' : 'gotest'
    case undefined:
      return undefined
  }
}

function quote(word: string): string {
  return /^[\w./:@%+=-]+$/.test(word) ? word : `'${word.replaceAll("'", String.raw`'\''`)}'`
}

function choices(): string {
  return logParserNames.join(', ')
}

function invalid({ id }: Instance, what: string): RolloutError {
  return new RolloutError('config.invalid', `Instance ${id} ${what}`)
}
