import { mkdtemp, rm, statfs } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { allowsExact, type Finding, type ProbeReport } from '../../gateway/upstreams/upstream.ts'
import { mayProtectFromOutOfMemory } from '../../lib/process/oom-score.ts'
import { isAtLeast } from '../../lib/versions.ts'
import { toHangingText, toVisibleLine } from '../../lib/visible-text.ts'
import { RolloutError, type Failure } from '../../model/failure.ts'
import { runtimes } from '../../node/sandbox/runtimes/index.ts'
import type { RuntimeCheck } from '../../node/sandbox/runtimes/runtime.ts'
import { StageWidths } from '../../node/session/stages.ts'
import { machineMemory, defaultMemoryMb } from '../../node/sandbox/default-memory.ts'
import { defineCommand, EXIT, option, toggle, type ExitCode } from '../command.ts'
import { openEngine } from '../../compose/open-engine.ts'
import { ENGINE_FLAGS, ENGINE_KEY_FLAG, toEngineChoice } from '../input/engine-flags.ts'
import { DEFAULT_OUT } from '../input/resolve-session.ts'
import { RUNTIMES_CONFIG_FLAG } from '../input/config-flags.ts'
import { loadRuntimeSettings, locateBubblewrap } from '../../compose/runtime-settings.ts'
import { openRuntime } from '../input/sandbox-options.ts'
import { readVersion } from '../../compose/version.ts'
import { print, printJson, withSnakeKeys } from '../views/print.ts'

export const command = defineCommand({
  name: 'doctor',
  description: 'Check this machine, and an engine if --engine-url is set: what can be captured, and what to change.',
  flags: {
    'engine-url': {
      ...ENGINE_FLAGS['engine-url'],
      description: 'Engine to check with a few requests of one token (default: check no engine)',
    },
    'engine-kind': ENGINE_FLAGS['engine-kind'],
    'engine-key': ENGINE_KEY_FLAG,
    model: ENGINE_FLAGS.model,
    out: option('DIR', 'Folder for sessions, whose disk is checked', { default: DEFAULT_OUT }),
    config: RUNTIMES_CONFIG_FLAG,
    json: toggle('Print the result as JSON'),
  },
  examples: ['polar doctor', 'polar doctor --engine-url http://localhost:8000'],
  async run({ flags }): Promise<ExitCode> {
    const machine = await examineMachine(resolve(flags.out))
    const sandboxes = await examineRuntimes(flags.config)
    const engine =
      flags['engine-url'] === undefined
        ? undefined
        : await examineEngine({ ...toEngineChoice('doctor', flags), waitMs: 0 })
    if (flags.json) printJson(withSnakeKeys(toJson(machine, sandboxes, engine)))
    else print(toText(machine, sandboxes, engine))
    if (engine?.failure !== undefined) return EXIT.unreachable
    const isFine = machine.every(({ isFine: fine }) => fine) && (engine === undefined || allowsExact(engine.report))
    return isFine ? EXIT.done : EXIT.failed
  },
})

// --- this machine ----------------------------------------------------------------------------------------------------

interface Check {
  name: 'polar' | 'node' | 'memory' | 'disk' | 'model'
  value: string
  /** What to do if the check failed, else further information. */
  note: string
  isFine: boolean
}

const MINIMUM_NODE = '22.19'
/** About what agents write in a day. */
const LOW_BYTES = 1024 ** 3

async function examineMachine(dir: string): Promise<Check[]> {
  return [
    { name: 'polar', value: readVersion(), note: '', isFine: true },
    checkNode(process.versions.node),
    checkMemory(),
    await checkDisk(dir),
    await checkModel(),
  ]
}

function checkNode(version: string): Check {
  const isFine = isAtLeast(version, MINIMUM_NODE)
  return { name: 'node', value: version, note: isFine ? '' : `Polar needs ${MINIMUM_NODE} or newer.`, isFine }
}

/** Reports the memory of each sandbox with the default widths, and whether the kernel kills sandboxes before the node. */
function checkMemory(): Check {
  const bytes = machineMemory()
  const share = defaultMemoryMb(bytes, StageWidths.parse({}))
  const note = mayProtectFromOutOfMemory()
    ? 'When memory runs out, the kernel kills sandboxes first and the node last.'
    : 'When memory runs out, the kernel kills sandboxes first; making the node its last choice needs root.'
  return { name: 'memory', value: `${formatBytes(bytes)}, ${share} MiB for a sandbox by default`, note, isFine: true }
}

async function checkDisk(dir: string): Promise<Check> {
  const name = 'disk'
  const found = await statNearest(dir)
  if (found === undefined)
    return { name, value: 'unknown', note: `The free space of ${dir} cannot be read.`, isFine: false }
  const free = found.bavail * found.bsize
  const isFine = free >= LOW_BYTES
  const note = isFine ? '' : 'Free some space, or choose another folder with --out DIR.'
  return { name, value: `${formatBytes(free)} free for ${dir}`, note, isFine }
}

/** Reads the free space of the folder, or of its nearest parent that exists. */
async function statNearest(dir: string): Promise<{ bavail: number; bsize: number } | undefined> {
  const found = await statfs(dir).catch(() => undefined)
  if (found !== undefined) return found
  const parent = dirname(dir)
  return parent === dir ? undefined : statNearest(parent)
}

function formatBytes(bytes: number): string {
  const gigabytes = bytes / 1024 ** 3
  return gigabytes >= 1 ? `${gigabytes.toFixed(1)} GiB` : `${Math.floor(bytes / 1024 ** 2)} MiB`
}

/** A variable, so that the compiler does not resolve the package, which is not a dependency. */
const NATIVE_PACKAGE: string = 'onnxruntime-node'

async function checkModel(): Promise<Check> {
  const name = 'model'
  try {
    await import(NATIVE_PACKAGE)
    return { name, value: 'native onnxruntime', note: '', isFine: true }
  } catch {
    const note = `The tiny model runs several times faster with the package ${NATIVE_PACKAGE}.`
    return { name, value: 'onnxruntime in WebAssembly', note, isFine: true }
  }
}

// --- sandboxes -------------------------------------------------------------------------------------------------------

type RuntimeChecks = Readonly<Record<string, RuntimeCheck>>

const RUNTIME_CHECK_MS = 20_000

/** Starts a sandbox of each kind. A runtime that is missing is not a failure. */
async function examineRuntimes(config: string | undefined): Promise<RuntimeChecks> {
  const dir = await mkdtemp(join(tmpdir(), 'polar-doctor-'))
  const { runtimes: configured } = await loadRuntimeSettings(process.env, config)
  const checks: Record<string, RuntimeCheck> = {}
  try {
    for (const kind of runtimes.kinds) {
      checks[kind] = await examineRuntime(kind, dir, configured[kind] ?? {}).catch((error: unknown) => ({
        isUsable: false,
        reason: error instanceof Error ? error.message : String(error),
      }))
    }
  } finally {
    await rm(dir, { recursive: true, force: true })
  }
  return checks
}

async function examineRuntime(
  kind: string,
  dir: string,
  configured: Readonly<Record<string, unknown>>,
): Promise<RuntimeCheck> {
  const found = kind === 'bubblewrap' ? await locateBubblewrap(configured, process.env) : undefined
  const settings = found === undefined ? configured : { ...configured, program: found.program }
  await using runtime = openRuntime(kind, dir, {}, { settings })
  const check = await runtime.check(AbortSignal.timeout(RUNTIME_CHECK_MS))
  if (found === undefined || !check.isUsable) return check
  return { ...check, notes: [`bwrap is ${found.program} (${found.origin})`, ...check.notes] }
}

function runtimeRow([kind, check]: [string, RuntimeCheck]): string {
  if (!check.isUsable) return row('limited', kind, `no sandboxes of this kind: ${check.reason}`, [])
  return row('good', kind, 'sandboxes can be started', check.notes)
}

// --- the engine ------------------------------------------------------------------------------------------------------

type Examined = { report: ProbeReport; failure?: undefined } | { failure: Failure; report?: undefined }

async function examineEngine(choice: Parameters<typeof openEngine>[0]): Promise<Examined> {
  try {
    await using engine = await openEngine(choice)
    return { report: engine.report! }
  } catch (error) {
    if (error instanceof RolloutError && error.boundary === 'upstream') return { failure: error.failure }
    throw error
  }
}

// --- printing --------------------------------------------------------------------------------------------------------

function toJson(machine: readonly Check[], sandboxes: RuntimeChecks, engine: Examined | undefined): unknown {
  const report = engine?.report
  return {
    machine: Object.fromEntries(machine.map(({ name, value, note, isFine }) => [name, { value, note, ok: isFine }])),
    runtimes: Object.fromEntries(Object.entries(sandboxes).map(([kind, check]) => [kind, runtimeJson(check)])),
    upstream: report ?? null,
    exact: report === undefined ? null : allowsExact(report),
    failure: engine?.failure ?? null,
  }
}

function runtimeJson(check: RuntimeCheck): Record<string, unknown> {
  return check.isUsable ? { usable: true, notes: check.notes } : { usable: false, reason: check.reason }
}

function toText(machine: readonly Check[], sandboxes: RuntimeChecks, engine: Examined | undefined): string {
  const lines = machine.map(({ name, value, note, isFine }) =>
    row(isFine ? 'good' : 'blocking', name, value, note === '' ? [] : [note]),
  )
  return [...lines, ...Object.entries(sandboxes).map(runtimeRow), ...engineLines(engine), ''].join('\n')
}

function engineLines(engine: Examined | undefined): string[] {
  if (engine === undefined) return []
  if (engine.failure !== undefined)
    return ['', toHangingText(`The engine could not be examined: ${engine.failure.message}`, 2)]
  const { report } = engine
  const version = report.version === undefined ? '' : ` ${report.version}`
  return [
    '',
    toVisibleLine(`${report.kind}${version} at ${report.url}, model ${report.model}`),
    '',
    ...report.findings.map(({ verdict, about, evidence, meaning }) => row(verdict, about, evidence, [meaning])),
    '',
    allowsExact(report)
      ? 'Calls to this engine can be captured exactly.'
      : 'Calls to this engine cannot be captured exactly: see the findings marked ✗.',
  ]
}

const MARKS: Readonly<Record<Finding['verdict'], string>> = { good: '✓', limited: '!', blocking: '✗' }
const NAME_WIDTH = 16

function row(verdict: Finding['verdict'], name: string, value: string, notes: readonly string[]): string {
  const column = NAME_WIDTH + 2
  const below = notes.map((note) => `${' '.repeat(column)}${toHangingText(note, column)}`)
  return [`${MARKS[verdict]} ${name.padEnd(NAME_WIDTH)}${toHangingText(value, column)}`, ...below].join('\n')
}
