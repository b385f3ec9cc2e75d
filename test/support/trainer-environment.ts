import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'

const root = fileURLToPath(new URL('../..', import.meta.url))
const requirementsFolder = join(root, 'test/trainers/requirements')

/** SkyRL needs 3.12 or newer; the pinned wheels are for this version. */
const PYTHON = '3.12'

export interface TrainerEnvironment {
  python: string
  /** Installed versions by package name, as reported by pip. */
  versions: ReadonlyMap<string, string>
  megabytes: number
}

/**
 * A virtual environment in `.polar` with the packages of `test/trainers/requirements/<name>.txt`. It is cached between
 * runs and recreated when a requirement changes. PyTorch (5 GB) is installed once and shared by a `.pth` file.
 * Returns the reason if the environment cannot be created.
 */
export function installTrainer(name: string): TrainerEnvironment | string {
  const base = findPython()
  if (base === undefined) return `Python ${PYTHON} is not installed`
  const torch = installOnce(base, 'torch')
  if (typeof torch === 'string') return torch
  const environment = name === 'torch' ? torch : installOnce(base, name, sitePackages(torch.folder))
  if (typeof environment === 'string') return environment
  const python = join(environment.folder, 'bin/python')
  return { python, versions: versionsOf(python), megabytes: megabytesOf(environment.folder) }
}

function installOnce(base: string, name: string, shared?: string): { folder: string } | string {
  const requirements = join(requirementsFolder, `${name}.txt`)
  const digest = createHash('sha1')
    .update(readFileSync(requirements))
    .update(shared ?? '')
    .digest('hex')
    .slice(0, 12)
  const folder = join(root, '.polar/trainers', `${name}-${digest}`)
  if (existsSync(join(folder, 'installed'))) return { folder }
  const made = run(base, ['-m', 'venv', '--clear', folder])
  if (made !== undefined) return made
  if (shared !== undefined) writeFileSync(join(sitePackages(folder), 'torch.pth'), `${shared}\n`)
  const pip = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--no-deps', '-r', requirements]
  const installed = run(join(folder, 'bin/python'), pip)
  if (installed !== undefined) return installed
  writeFileSync(join(folder, 'installed'), '')
  return { folder }
}

function sitePackages(folder: string): string {
  return join(folder, 'lib', `python${PYTHON}`, 'site-packages')
}

/** `python3.12` of the path, or the newest 3.12 of pyenv. */
function findPython(): string | undefined {
  const pyenv = join(homedir(), '.pyenv/versions')
  const versions = existsSync(pyenv) ? readdirSync(pyenv).filter((name) => name.startsWith(`${PYTHON}.`)) : []
  const candidates = [
    `python${PYTHON}`,
    ...versions
      .toSorted()
      .toReversed()
      .map((name) => join(pyenv, name, 'bin/python')),
  ]
  return candidates.find((candidate) => {
    const { status, stdout } = spawnSync(candidate, ['--version'], { encoding: 'utf8' })
    return status === 0 && stdout.startsWith(`Python ${PYTHON}.`)
  })
}

function run(file: string, args: readonly string[]): string | undefined {
  mkdirSync(join(root, '.polar/trainers'), { recursive: true })
  const { status, error, stderr } = spawnSync(file, args, { encoding: 'utf8' })
  if (status === 0) return undefined
  return `${file} ${args.slice(0, 3).join(' ')}: ${(error?.message ?? stderr).trim().split('\n').at(-1)}`
}

function versionsOf(python: string): Map<string, string> {
  const list = spawnSync(python, ['-m', 'pip', 'list', '--format', 'json', '--disable-pip-version-check'], {
    encoding: 'utf8',
  })
  const packages = JSON.parse(list.stdout) as { name: string; version: string }[]
  return new Map(packages.map(({ name, version }) => [name.toLowerCase(), version]))
}

function megabytesOf(folder: string): number {
  const { stdout } = spawnSync('du', ['-sm', folder], { encoding: 'utf8' })
  return Number.parseInt(stdout, 10)
}
