import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readFileSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('../..', import.meta.url))

/** Arguments: the base interpreter as $0, the folder, the requirements, and options of pip. */
const INSTALL = `
environment=$1 requirements=$2
shift 2
[ -e "$environment/installed" ] && exit
"$0" -m venv --clear "$environment" &&
"$environment/bin/python" -m pip install "$@" -r "$requirements" &&
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
  return {
    python,
    install() {
      if (existsSync(join(environment, 'installed'))) return undefined
      // Two test files may create the same environment concurrently.
      mkdirSync(dirname(environment), { recursive: true })
      const run = spawnSync(
        'flock',
        [`${environment}.lock`, 'sh', '-c', INSTALL, base, environment, requirements, ...options],
        {
          encoding: 'utf8',
        },
      )
      if (run.status === 0) return undefined
      return `${base} with ${requirementsFile}: ${(run.error?.message ?? run.stderr).trim().split('\n').at(-1)}`
    },
  }
}
