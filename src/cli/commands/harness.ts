import { resolve } from 'node:path'
import { allowModules } from '../../lib/process/load-module.ts'
import { checkHarness } from '../../node/harness/check-harness.ts'
import { findHarness, installFolder, type FoundHarness, type HarnessFolders } from '../../node/harness/find-harness.ts'
import type { Bundle } from '../../node/harness/install/harness-bundle.ts'
import type { PackagedHarness } from '../../node/harness/presets/harness.ts'
import { harnesses } from '../../node/harness/presets/index.ts'
import { installHarness, type Installation } from '../../node/harness/install/install-harness.ts'
import { isPackaged, loadHarness } from '../../node/harness/load-harness.ts'
import { actionError, defineCommand, EXIT, option, toggle, usageError, type ExitCode } from '../command.ts'
import { listenForInterrupt } from '../stop-signals.ts'
import { HARNESS_DIR_HELP, harnessNamed, harnessPlaces } from '../../compose/harness-folders.ts'
import { formatTable } from '../views/table.ts'
import { readVersion } from '../../compose/version.ts'
import { print, printError, printJson } from '../views/print.ts'

export const command = defineCommand({
  name: 'harness',
  description: 'Install harnesses (agent CLIs) as bundles that run in any sandbox, list them, and check them.',
  words: { name: 'ls | install NAME… | check [NAME…]', description: 'Action; install needs names, or all' },
  flags: {
    module: option('FILE', 'Module that exports a further "harness"; may be repeated', { multiple: true }),
    dir: option('DIR', HARNESS_DIR_HELP),
    json: toggle('Print the result as JSON'),
  },
  examples: [
    'polar harness ls',
    'polar harness install codex opencode',
    'polar harness install all --dir /opt/harnesses',
    'polar harness install --module ./my-harness.ts',
    'polar harness check',
  ],
  async run({ flags, words: [action, ...names] }): Promise<ExitCode> {
    const places = harnessPlaces(flags.dir, process.env)
    const custom = await Promise.all(flags.module.map(loadPackaged))
    if (action === 'ls') {
      if (names.length > 0) throw usageError('harness', 'ls accepts no names')
      return list([...harnesses, ...custom], places, flags.json)
    }
    const chosen = [...(names.includes('all') ? harnesses : names.map(harnessNamed)), ...custom]
    if (action === 'install') {
      if (chosen.length === 0) throw usageError('harness', 'name the harnesses to install, or all')
      return install(chosen, places, flags.json)
    }
    if (action === 'check') return check(chosen, places, flags.json)
    throw actionError('harness', action, 'ls, install or check')
  },
})

/** The user of this program can run any code, so a module that the user names is allowed. */
async function loadPackaged(file: string): Promise<PackagedHarness> {
  const path = resolve(file)
  const custom = await loadHarness(path, { allowed: await allowModules([path]) })
  if (isPackaged(custom)) return custom
  throw usageError('harness', `the harness of ${file} names no package to install`)
}

/** `bundle`: can be mounted into sandboxes. `no bundle`: installed by an older polar. `in PATH`: installed by the user. */
type HarnessState = 'bundle' | 'no bundle' | 'in PATH' | 'damaged' | 'not here'

interface Row {
  name: string
  package: string
  version: string
  dialect: string
  state: HarnessState
  path: string | null
  /** Null unless it is a bundle. */
  bundle: Bundle | null
}

async function list(all: readonly PackagedHarness[], places: HarnessFolders, asJson: boolean): Promise<ExitCode> {
  const rows: Row[] = []
  for (const known of all) {
    // A damaged harness does not prevent the list of the others.
    const found = await findHarness(known, places).catch(() => 'damaged' as const)
    rows.push(toRow(known, found, places))
  }
  if (asJson) {
    printJson(rows, 2)
    return EXIT.done
  }
  print(
    formatTable([
      ['name', 'version', 'state', 'size', 'API', 'where'],
      ...rows.map(({ name, version, state, bundle, dialect, path }) => [
        name,
        version,
        state,
        bundle === null ? '-' : megabytes(bundle.bytes),
        dialect,
        path ?? `polar harness install ${name}`,
      ]),
    ]),
  )
  return EXIT.done
}

function toRow(known: PackagedHarness, found: FoundHarness | 'damaged' | undefined, { dir }: HarnessFolders): Row {
  const { name, package: origin, dialect } = known
  const about = { name, package: `${origin.registry}:${origin.name}`, version: origin.version, dialect }
  if (found === undefined) return { ...about, state: 'not here', path: null, bundle: null }
  const folder = installFolder(known, dir)
  if (found === 'damaged') return { ...about, state: 'damaged', path: folder, bundle: null }
  if (found.bundle !== undefined) return { ...about, state: 'bundle', path: folder, bundle: found.bundle }
  const state = found.path.startsWith(folder) ? 'no bundle' : 'in PATH'
  return { ...about, state, path: found.path, bundle: null }
}

async function install(chosen: readonly PackagedHarness[], places: HarnessFolders, asJson: boolean): Promise<ExitCode> {
  using interrupted = listenForInterrupt()
  const rows: (Bundle & { folder: string; outcome: string })[] = []
  const createdBy = `polar-rl ${readVersion()}`
  for (const known of chosen) {
    const { name, version } = known.package
    printError(`${known.name}: ${name} ${version} … `)
    const startedAt = performance.now()
    const done = await installHarness(known, {
      folders: places,
      env: process.env,
      createdBy,
      signal: interrupted.signal,
    })
    const seconds = ((performance.now() - startedAt) / 1000).toFixed(0)
    printError(`${OUTCOMES[done.outcome]} in ${seconds} s, ${megabytes(done.bundle.bytes)}\n`)
    rows.push({ ...done.bundle, folder: done.folder, outcome: done.outcome })
  }
  if (asJson) printJson(rows, 2)
  return EXIT.done
}

const OUTCOMES: Readonly<Record<Installation['outcome'], string>> = {
  installed: 'installed',
  upgraded: 'converted to a bundle',
  replaced: 'was damaged, reinstalled',
  kept: 'already installed, checked',
}

/** Checks all installed harnesses if none is named. */
async function check(chosen: readonly PackagedHarness[], places: HarnessFolders, asJson: boolean): Promise<ExitCode> {
  const results: { name: string; version: string; problems: string[] }[] = []
  for (const known of chosen.length === 0 ? harnesses : chosen) {
    const { name, package: origin } = known
    const problems = await checkHarness(known, places)
    if (problems === undefined && chosen.length === 0) continue
    const missing = `not installed as a bundle; run: polar harness install ${name}`
    results.push({ name, version: origin.version, problems: problems ?? [missing] })
  }
  if (asJson) printJson(results, 2)
  else print(results.map(renderCheck).join(''))
  if (results.length === 0) printError(`No bundles in ${places.dir}. Install one with: polar harness install NAME\n`)
  return results.some(({ problems }) => problems.length > 0) ? EXIT.failed : EXIT.done
}

/** A deleted tree has thousands of problems. */
const MOST_PROBLEMS = 20

function renderCheck({ name, version, problems }: { name: string; version: string; problems: string[] }): string {
  if (problems.length === 0) return `${name} ${version}: intact, starts\n`
  const shown = problems.slice(0, MOST_PROBLEMS).map((problem) => `  ${problem}\n`)
  const more = problems.length > MOST_PROBLEMS ? `  and ${problems.length - MOST_PROBLEMS} more\n` : ''
  return `${name} ${version}: ${problems.length} problems; repair with: polar harness install ${name}\n${shown.join('')}${more}`
}

function megabytes(bytes: number): string {
  return `${Math.round(bytes / 1e6)} MB`
}
