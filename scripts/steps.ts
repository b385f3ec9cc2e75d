import { spawn } from 'node:child_process'
import { mkdtemp, readFile, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { stripVTControlCharacters } from 'node:util'
import type { TestSummary } from './test-reporter.ts'

const root = dirname(import.meta.dirname)

export interface StepResult {
  name: string
  seconds: number
  /** Output; empty if it was printed to the terminal. */
  output: string
  summary: TestSummary
}

export interface Step {
  name: string
  run(): Promise<StepResult>
}

/** Checks that run before tests. They are independent of each other. */
export const staticSteps: readonly Step[] = [
  commandStep('types', 'tsc'),
  commandStep('lint', 'npm', 'run', '--silent', 'lint'),
  commandStep('format', 'oxfmt', '--check'),
  commandStep('dead code', 'knip'),
  commandStep('generated files', 'node', 'scripts/generate-docs.ts', '--check'),
  commandStep('package', 'npm', 'run', '--silent', 'build:check'),
]

/** A command that counts as one passed or failed test. */
export function commandStep(name: string, command: string, ...args: string[]): Step {
  return {
    name,
    run: async () => {
      const { exitCode, output, seconds } = await runCommand([command, ...args])
      const summary = exitCode === 0 ? { passed: 1, failed: 0, skipped: [] } : { passed: 0, failed: 1, skipped: [] }
      return { name, seconds, output, summary }
    },
  }
}

export interface TestOptions {
  /** Print the progress to the terminal at once. */
  stream: boolean
  /** Command prefix. */
  prefix?: readonly string[]
  env?: Record<string, string>
}

/** One project of vitest.config.ts. */
export function testStep(name: string, project: string, { stream, prefix = [], env = {} }: TestOptions): Step {
  return {
    name,
    run: async () => {
      const directory = await mkdtemp(join(tmpdir(), 'polar-test-'))
      const summaryFile = join(directory, 'summary.json')
      const reporters = ['--reporter=default', '--reporter=./scripts/test-reporter.ts']
      try {
        const command = [...prefix, 'vitest', 'run', '--project', project, ...reporters]
        const { exitCode, output, seconds } = await runCommand(command, {
          stream,
          env: { ...env, POLAR_TEST_SUMMARY: summaryFile },
        })
        const summary = await loadSummary(summaryFile, exitCode)
        return { name, seconds, output, summary }
      } finally {
        await rm(directory, { recursive: true, force: true })
      }
    },
  }
}

/** Runs at most `width` steps at a time, in order, and reports each as it ends. */
export async function runSteps(steps: readonly Step[], width: number): Promise<StepResult[]> {
  const results: StepResult[] = []
  const waiting = [...steps]
  const work = async () => {
    for (let step = waiting.shift(); step !== undefined; step = waiting.shift()) {
      const result = await step.run()
      results.push(result)
      console.log(renderResult(result))
    }
  }
  await Promise.all(Array.from({ length: width }, work))
  return results
}

/** Prints the output of failed steps. */
export function printFailures(results: readonly StepResult[]): void {
  for (const { name, output } of results.filter(hasFailed)) {
    if (output !== '') console.log(`\n──── ${name} ────\n${output.trimEnd()}`)
  }
}

export function hasFailed(result: StepResult): boolean {
  return result.summary.failed > 0
}

export function renderCounts({ passed, failed, skipped }: TestSummary): string {
  return `${passed} passed, ${failed} failed${skipped.length === 0 ? '' : `, ${skipped.length} skipped`}`
}

function renderResult(result: StepResult): string {
  const { passed, failed, skipped } = result.summary
  const counts = passed + failed + skipped.length > 1 ? renderCounts(result.summary) : ''
  const mark = hasFailed(result) ? '✗' : '✓'
  return `${mark} ${result.name.padEnd(16)}${result.seconds.toFixed(1).padStart(6)} s  ${counts}`.trimEnd()
}

/** A run that left no summary, or ran nothing, or failed without a failing test, counts as one failure. */
async function loadSummary(file: string, exitCode: number): Promise<TestSummary> {
  const text = await readFile(file, 'utf8').catch(() => undefined)
  if (text === undefined) return { passed: 0, failed: 1, skipped: [] }
  const summary = JSON.parse(text) as TestSummary
  return exitCode !== 0 && summary.failed === 0 ? { ...summary, failed: 1 } : summary
}

interface CommandOptions {
  stream?: boolean
  env?: Record<string, string>
}

/** Runs a command in the root of the project, with the programs of its packages in PATH. */
export async function runCommand([command, ...args]: string[], { stream = false, env = {} }: CommandOptions = {}) {
  const startedAt = performance.now()
  const path = `${join(root, 'node_modules/.bin')}:${process.env['PATH']}`
  const plain = !process.stdout.isTTY
  // Vitest and some harnesses behave differently where CI is set; the tests are the same everywhere.
  // Registries may be reached through a proxy whose certificate only the machine knows: NODE_USE_SYSTEM_CA.
  const { CI: _, ...inherited } = process.env
  const child = spawn(command!, args, {
    cwd: root,
    env: {
      NODE_USE_SYSTEM_CA: '1',
      // Tests start hundreds of processes from source; each of them would compile the same files.
      NODE_COMPILE_CACHE: join(root, '.polar/compile-cache'),
      ...inherited,
      PATH: path,
      ...(plain ? { NO_COLOR: '1' } : {}),
      ...env,
    },
    stdio: ['ignore', stream ? 'inherit' : 'pipe', stream ? 'inherit' : 'pipe'],
  })
  let output = ''
  for (const pipe of [child.stdout, child.stderr])
    pipe?.setEncoding('utf8').on('data', (text: string) => (output += text))
  const exitCode = await new Promise<number>((resolve) => {
    child.on('error', (error) => {
      output += `${command}: ${error.message}\n`
      resolve(127)
    })
    child.on('close', (code) => resolve(code ?? 1))
  })
  // Some tools ignore NO_COLOR.
  return {
    exitCode,
    output: plain ? stripVTControlCharacters(output) : output,
    seconds: (performance.now() - startedAt) / 1000,
  }
}
