import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('../..', import.meta.url))

/**
 * The pip that fills all environments: a pip in each environment takes 5 s CPU to create, and pip before 24 takes twice the
 * CPU time to read an index.
 */
const PIP = 'pip==26.3'

/** Arguments: the base interpreter as $0, the folder. */
const INSTALL_PIP = `
[ -e "$1/installed" ] && exit
"$0" -m venv --clear "$1" &&
"$1/bin/python" -m pip install --quiet --disable-pip-version-check ${PIP} &&
touch "$1/installed"
`

/** Arguments: the base interpreter as $0, the folder of pip, the folder, the requirements, and options of pip. */
const INSTALL = `
pip=$1 environment=$2 requirements=$3
shift 3
[ -e "$environment/installed" ] && exit
"$0" -m venv --clear --without-pip "$environment" &&
"$pip/bin/python" -m pip --python "$environment/bin/python" install "$@" -r "$requirements" &&
touch "$environment/installed"
`

/** Returns the reason if `python3` cannot run the Python client. */
export function whyNoPython(): string | undefined {
  const { status } = spawnSync('python3', ['-c', 'import sys; sys.exit(sys.version_info < (3, 10))'])
  return status === 0 ? undefined : 'python3 is missing or older than 3.10'
}

export interface PythonEnvironment {
  /** Path of the interpreter. */
  python: string
  /** Command that runs pip for this environment, which has no pip of its own. */
  pip: readonly [string, ...string[]]
  /** Creates the environment if it is missing. Returns the reason if it cannot be created. */
  install(): string | undefined
}

/** A Python with the packages of a file in test/support. Cached between runs, and recreated when the versions change. */
export function pythonEnvironment(
  name: string,
  requirementsFile: string,
  pipOptions: readonly string[] = [],
  /** The base interpreter. */
  base = 'python3',
): PythonEnvironment {
  const requirements = join(root, 'test/support', requirementsFile)
  const digest = createHash('sha1').update(readFileSync(requirements)).digest('hex').slice(0, 12)
  const environment = join(root, '.polar', `${name}-${digest}`)
  const python = join(environment, 'bin/python')
  const options = ['--quiet', '--disable-pip-version-check', '--no-compile', ...pipOptions]
  const pip = join(root, '.polar', PIP.replace('==', '-'))
  return {
    python,
    pip: [join(pip, 'bin/python'), '-m', 'pip', '--python', python],
    install() {
      if (existsSync(join(environment, 'installed'))) return undefined
      mkdirSync(dirname(environment), { recursive: true })
      const problem =
        runLocked(pip, [INSTALL_PIP, base, pip]) ??
        runLocked(environment, [INSTALL, base, pip, environment, requirements, ...options])
      return problem === undefined ? undefined : `${base} with ${requirementsFile}: ${problem}`
    },
  }
}

/** Runs a script alone: several test files may create the same folder concurrently. Returns the last line of its errors. */
function runLocked(folder: string, script: readonly string[]): string | undefined {
  const run = spawnSync('flock', [`${folder}.lock`, 'sh', '-c', ...script], { encoding: 'utf8' })
  return run.status === 0 ? undefined : (run.error?.message ?? run.stderr).trim().split('\n').at(-1)
}
