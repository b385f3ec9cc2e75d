import { RolloutError } from '../../../model/failure.ts'
import type { EvalType } from './report.ts'
import type { Instance } from './instance.ts'
import { findLogParser, logParserNames } from './log-parsers.ts'
import type { LogParser } from './log.ts'

/** Programs whose tests we know how to add to. */
export type Runner = 'pytest' | 'unittest' | 'sympy' | 'jest' | 'vitest' | 'mocha' | 'node' | 'go'

/** How the tests of an instance are run and read. */
export interface Recipe {
  /** A shell's, before the tests, in the same shell. */
  setup: string
  /** A shell's; `{tests}` is where the tests go, else they are appended. */
  command: string
  /** What the command is told of a test file; files that give nothing are not named. */
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
  /** Versions that differ. */
  versions?: Readonly<Record<string, string>>
}

const PYTEST = 'pytest -rA'
const CLASSIC = 'pytest -rA -vv -o console_output_style=classic --tb=no'
const DJANGO = './tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel 1'
const SYMPY = "PYTHONWARNINGS='ignore::UserWarning,ignore::SyntaxWarning' bin/test -C --verbose"

/** What the harnesses of SWE-bench and SWE-Gym run; names in lower case, as SWE-Gym's rows have them in both. */
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

/** The environment in which the images of SWE-bench and SWE-Gym run everything; other images do not have it. */
const CONDA = `if [ -f /opt/miniconda3/bin/activate ]; then
  . /opt/miniconda3/bin/activate && conda activate testbed
fi`
const DJANGO_SETUP = 'export LANG=en_US.UTF-8 LC_ALL=en_US.UTF-8 PYTHONIOENCODING=utf8 LANGUAGE=en_US:en'

/** Throws `config.invalid` when neither the row, nor the settings, nor its looks say how. */
export function toRecipe(instance: Instance, overrides: RecipeOverrides): Recipe {
  const known = KNOWN[instance.repo]
  const command =
    overrides.test_cmd ??
    instance.testCommand ??
    instance.script?.tests ??
    known?.versions?.[instance.version] ??
    known?.command ??
    guess(instance)
  if (command === undefined)
    throw invalid(instance, 'does not say how its tests are run; set test_cmd, or put it in the row')
  const runner = detectRunner(command)
  const parserName = overrides.log_parser ?? instance.logParser ?? known?.parser ?? usualParser(command, runner)
  if (parserName === undefined)
    throw invalid(instance, `does not say how the output of its tests is read; set log_parser to one of ${choices()}`)
  const parse = findLogParser(parserName)
  if (parse === undefined)
    throw invalid(instance, `wants log_parser ${JSON.stringify(parserName)}; there are ${choices()}`)
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
    ...(runner !== undefined && { runner }),
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

/** Whether a command says by itself which tests it runs, as a row's own script does. */
function namesTests(command: string, runner: Runner | undefined, files: readonly string[]): boolean {
  return files.some((file) => command.includes(file)) || (runner === 'go' && /\s\.{1,3}(\/|\s|$)/.test(command))
}

/** The whole command. */
export function withDirectives(command: string, directives: readonly string[]): string {
  const list = directives.map(quote).join(' ')
  return command.includes('{tests}') ? command.replaceAll('{tests}', () => list) : `${command} ${list}`.trimEnd()
}

/** Files that no runner takes for tests, by the endings that SWE-bench goes by. */
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

/** From the names of tests, where the row is of a repository that we do not know. */
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
      return runner
    case 'sympy':
      return 'sympy'
    case 'unittest':
      return 'unittest'
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
