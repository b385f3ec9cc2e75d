import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('../..', import.meta.url))

export interface PythonEnvironment {
  /** Its interpreter. */
  python: string
  /** Makes it if it is not there. Undefined, or why it cannot be made. */
  install(): string | undefined
}

/** A Python with the packages of a file in test/support. Kept between runs, and made anew when the versions change. */
export function pythonEnvironment(
  name: string,
  requirementsFile: string,
  pipOptions: readonly string[] = [],
  /** The interpreter it is made of. */
  base = 'python3',
): PythonEnvironment {
  const requirements = join(root, 'test/support', requirementsFile)
  const digest = createHash('sha1').update(readFileSync(requirements)).digest('hex').slice(0, 12)
  const environment = join(root, '.polar', `${name}-${digest}`)
  const python = join(environment, 'bin/python')
  const options = ['--quiet', '--disable-pip-version-check', ...pipOptions]
  return {
    python,
    install() {
      if (existsSync(join(environment, 'installed'))) return undefined
      const steps = [
        [base, '-m', 'venv', '--clear', environment],
        [python, '-m', 'pip', 'install', ...options, '-r', requirements],
        ['touch', join(environment, 'installed')],
      ]
      for (const [file = '', ...args] of steps) {
        const run = spawnSync(file, args, { encoding: 'utf8' })
        if (run.status === 0) continue
        return `${file} ${args.slice(0, 3).join(' ')}: ${(run.error?.message ?? run.stderr).trim().split('\n').at(-1)}`
      }
      return undefined
    },
  }
}
