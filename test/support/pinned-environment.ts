import { spawnSync } from 'node:child_process'
import { createHash } from 'node:crypto'
import { existsSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs'
import { homedir } from 'node:os'
import { dirname, join } from 'node:path'

/** SkyRL needs 3.12 or newer; the pinned wheels are for this version. */
const PYTHON = '3.12'

/**
 * Creates a virtual environment below `parent` with exactly the packages of a requirements file, without resolving
 * dependencies. It is kept between runs and recreated when a requirement changes. Packages of `shared` are visible in it.
 * Returns its folder, or the reason if it cannot be created.
 */
export function installPinned(
  parent: string,
  name: string,
  requirements: string,
  shared?: string,
): { folder: string } | string {
  const base = findPython()
  if (base === undefined) return `Python ${PYTHON} is not installed`
  const digest = createHash('sha1')
    .update(readFileSync(requirements))
    .update(shared ?? '')
    .digest('hex')
    .slice(0, 12)
  const folder = join(parent, `${name}-${digest}`)
  if (existsSync(join(folder, 'installed'))) return { folder }
  mkdirSync(dirname(folder), { recursive: true })
  const made = runOrExplain(base, ['-m', 'venv', '--clear', folder])
  if (made !== undefined) return made
  if (shared !== undefined) writeFileSync(join(sitePackages(folder), 'shared.pth'), `${shared}\n`)
  const pip = ['-m', 'pip', 'install', '--quiet', '--disable-pip-version-check', '--no-deps', '-r', requirements]
  const installed = runOrExplain(join(folder, 'bin/python'), pip)
  if (installed !== undefined) return installed
  writeFileSync(join(folder, 'installed'), '')
  return { folder }
}

export function sitePackages(folder: string): string {
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

/** Runs a program. Returns the last line of its error output if it fails. */
export function runOrExplain(file: string, args: readonly string[]): string | undefined {
  const { status, error, stderr } = spawnSync(file, args, { encoding: 'utf8' })
  if (status === 0) return undefined
  return `${file} ${args.slice(0, 3).join(' ')}: ${(error?.message ?? stderr).trim().split('\n').at(-1)}`
}

/** Installed versions by package name, as reported by pip. */
export function versionsOf(python: string): Map<string, string> {
  const list = spawnSync(python, ['-m', 'pip', 'list', '--format', 'json', '--disable-pip-version-check'], {
    encoding: 'utf8',
  })
  const packages = JSON.parse(list.stdout) as { name: string; version: string }[]
  return new Map(packages.map(({ name, version }) => [name.toLowerCase(), version]))
}

export function megabytesOf(folder: string): number {
  const { stdout } = spawnSync('du', ['-sm', folder], { encoding: 'utf8' })
  return Number.parseInt(stdout, 10)
}
