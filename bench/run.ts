/** `npm run bench [-- name…] [--long] [--install]`: runs the named benches, or all. */
import { availableParallelism, cpus, totalmem } from 'node:os'
import { parseArgs } from 'node:util'

const NAMES = [
  'engine-model',
  'engine-wire',
  'call-log',
  'trajectory',
  'export',
  'gateway',
  'gateway-memory',
  'sandbox',
  'node',
  'dispatch',
  'upload',
  'server',
  'sim',
] as const

export interface BenchOptions {
  long: boolean
  /** Fetches the other gateways to compare with, where they are not installed yet. */
  install: boolean
}

type Bench = (options: BenchOptions) => Promise<unknown>

const { positionals, values } = parseArgs({
  allowPositionals: true,
  options: { long: { type: 'boolean', default: false }, install: { type: 'boolean', default: false } },
})
const unknown = positionals.filter((name) => !NAMES.some((known) => known === name))
if (unknown.length > 0) {
  console.error(`Unknown bench ${unknown.join(', ')}. Use ${NAMES.join(', ')}.`)
  process.exit(2)
}

const start = performance.now()
console.log(
  `node ${process.version} on ${availableParallelism()} cores (${cpus()[0]?.model.trim() ?? 'unknown'}), ` +
    `${(totalmem() / 2 ** 30).toFixed(0)} GB, ${process.platform} ${process.arch}`,
)
for (const name of positionals.length > 0 ? positionals : NAMES) await runOne(name)
console.log(`\n${seconds(start)} s in all`)

/** Runs one bench. A bench that fails prints the error, and the others still run. */
async function runOne(name: string): Promise<void> {
  const begun = performance.now()
  console.log(`\n━━ ${name}`)
  try {
    const bench = await loadBench(name)
    await bench({ long: values.long, install: values.install })
    console.log(`\n${name}: ${seconds(begun)} s`)
  } catch (error) {
    process.exitCode = 1
    console.log(`${name} failed: ${error instanceof Error ? (error.stack ?? error.message) : String(error)}`)
  }
}

/** `call-log.ts` exports `benchCallLog`. A bench that is a folder exports it from its `main.ts`. */
async function loadBench(name: string): Promise<Bench> {
  const file = name === 'sim' ? 'sim/main' : name
  const module = (await import(new URL(`${file}.ts`, import.meta.url).href)) as Record<string, unknown>
  const wanted = `bench${name.replaceAll(/(^|-)(\w)/g, (_, _dash, letter: string) => letter.toUpperCase())}`
  const bench = module[wanted]
  if (typeof bench !== 'function') throw new Error(`${name}.ts exports no ${wanted}`)
  return bench as Bench
}

function seconds(since: number): string {
  return ((performance.now() - since) / 1000).toFixed(0)
}
