import { harnesses } from '../../node/harnesses/index.ts'
import { findHarness, installFolder, type HarnessPlaces } from '../../node/find-harness.ts'
import { installHarness, sizeOf } from '../../node/install-harness.ts'
import type { Harness } from '../../node/harnesses/harness.ts'
import { defineCommand, EXIT, usageError, type ExitCode } from '../command.ts'
import { HARNESS_DIR_HELP, harnessNamed, harnessPlaces } from '../harness-places.ts'
import { formatTable } from '../table.ts'

export const harness = defineCommand({
  name: 'harness',
  description: 'Install the agent CLIs that polar record --harness runs, and see which are here.',
  words: { name: 'ls | install NAME…', description: 'What to do; install takes names, or all' },
  flags: {
    dir: { type: 'string', hint: 'DIR', description: HARNESS_DIR_HELP },
    json: { type: 'boolean', description: 'Print the result as JSON' },
  },
  examples: [
    'polar harness ls',
    'polar harness install codex opencode',
    'polar harness install all --dir /opt/harnesses',
  ],
  async run({ flags, words: [action, ...names] }): Promise<ExitCode> {
    const places = harnessPlaces(flags.dir, process.env)
    if (action === 'ls') {
      if (names.length > 0) throw usageError('harness', 'ls takes no names')
      await list(places, flags.json)
      return EXIT.done
    }
    if (action === 'install') {
      if (names.length === 0) throw usageError('harness', 'say which to install, or all')
      await install(names.includes('all') ? harnesses : names.map(harnessNamed), places, flags.json)
      return EXIT.done
    }
    throw usageError('harness', action === undefined ? 'say ls or install' : `there is no "${action}"`)
  },
})

async function list(places: HarnessPlaces, asJson: boolean): Promise<void> {
  const rows: Row[] = []
  for (const known of harnesses) {
    const found = await findHarness(known, places)
    const isOurs = found?.path.startsWith(installFolder(known, places.dir)) ?? false
    const bytes = isOurs ? await sizeOf(installFolder(known, places.dir)) : null
    rows.push({ ...describe(known), path: found?.path ?? null, bytes })
  }
  if (asJson) {
    process.stdout.write(`${JSON.stringify(rows, null, 2)}\n`)
    return
  }
  process.stdout.write(
    formatTable([
      ['name', 'package', 'version', 'speaks', 'disk', 'found'],
      ...rows.map(({ name, npm_package, version, dialect, bytes, path }) => [
        name,
        npm_package,
        version,
        dialect,
        bytes === null ? '-' : megabytes(bytes),
        path ?? `no (polar harness install ${name})`,
      ]),
    ]),
  )
}

interface Row {
  name: string
  npm_package: string
  version: string
  dialect: string
  path: string | null
  /** Null unless we installed it. */
  bytes: number | null
}

function describe({ name, npm, dialect }: Harness): Pick<Row, 'name' | 'npm_package' | 'version' | 'dialect'> {
  return { name, npm_package: npm.package, version: npm.version, dialect }
}

async function install(chosen: readonly Harness[], places: HarnessPlaces, asJson: boolean): Promise<void> {
  const interrupted = new AbortController()
  const stop = (): void => interrupted.abort()
  process.on('SIGINT', stop).on('SIGTERM', stop)
  const rows: Row[] = []
  for (const known of chosen) {
    const { package: name, version } = known.npm
    process.stderr.write(`${known.name}: ${name} ${version} … `)
    const startedAt = performance.now()
    const done = await installHarness(known, { places, env: process.env, signal: interrupted.signal })
    const seconds = ((performance.now() - startedAt) / 1000).toFixed(0)
    process.stderr.write(`${done.isNew ? `installed in ${seconds} s` : 'is here already'}, ${megabytes(done.bytes)}\n`)
    rows.push({ ...describe(known), path: done.program, bytes: done.bytes })
  }
  process.off('SIGINT', stop).off('SIGTERM', stop)
  if (asJson) process.stdout.write(`${JSON.stringify(rows, null, 2)}\n`)
}

function megabytes(bytes: number): string {
  return `${Math.round(bytes / 1e6)} MB`
}
