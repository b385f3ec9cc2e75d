#!/usr/bin/env node
import { RolloutError, toFailure } from '../model/failure.ts'
import { allowClosedOutput } from './views/closed-output.ts'
import { EXIT, type Command, type ExitCode } from './command.ts'
import { readVersion } from '../compose/version.ts'
import { print, printError } from './views/print.ts'

type Loader = () => Promise<{ command: Command }>

/** Commands with their summaries for `polar --help`, loaded on use. */
const commands: Readonly<Record<string, readonly [summary: string, load: Loader]>> = {
  up: ['Start a server, a node and an engine on this machine', () => import('./commands/up.ts')],
  task: ['Submit tasks to a server, wait for them, get results', () => import('./commands/task.ts')],
  policy: ['Show or set the weight version; pause and resume', () => import('./commands/policy.ts')],
  'train-demo': ['Train the tiny model through pi, on this machine', () => import('./commands/train-demo.ts')],
  run: ['Run tasks on this machine without a server', () => import('./commands/run.ts')],
  campaign: ['Collect accepted trajectories of a dataset for SFT', () => import('./commands/campaign.ts')],
  record: ['Run a harness and record all its model calls', () => import('./commands/record.ts')],
  server: ['Accept tasks and lease their sessions to nodes', () => import('./commands/server.ts')],
  node: ['Join a server, lease sessions and run them', () => import('./commands/node.ts')],
  cluster: ['Start and stop nodes on many machines with Slurm', () => import('./commands/cluster.ts')],
  config: ['Print the effective settings and their origins', () => import('./commands/config.ts')],
  harness: ['Install, list and check harnesses (agent CLIs)', () => import('./commands/harness.ts')],
  sandbox: ['Run a command in a sandbox; list and remove sandboxes', () => import('./commands/sandbox.ts')],
  show: ['Show a recorded session: calls, answers, tokens', () => import('./commands/show.ts')],
  inspect: ['Show the calls of a session as a tree', () => import('./commands/inspect.ts')],
  build: ['Build the training data of a session and report exclusions', () => import('./commands/build.ts')],
  export: ['Export recorded sessions as training data', () => import('./commands/export.ts')],
  drift: ['Explain where prompts diverge, and suggest rules', () => import('./commands/drift.ts')],
  gateway: ['Serve the model calls of many sessions, with a control API', () => import('./commands/gateway.ts')],
  doctor: ['Check this machine and an engine', () => import('./commands/doctor.ts')],
  engine: ['Serve the tiny model, or a script, over the API of vLLM', () => import('./commands/engine.ts')],
}

/** Failures of a Polar server that does not answer, or answers with an error. */
const UNREACHABLE: ReadonlySet<string> = new Set(['server.unreachable', 'server.failed', 'store.unavailable'])

allowClosedOutput()
process.exitCode = await main(process.argv.slice(2))

async function main(argv: readonly string[]): Promise<ExitCode> {
  const [verb, ...rest] = argv
  if (verb === undefined || verb === '--help' || verb === '-h') {
    print(overview())
    return EXIT.done
  }
  if (verb === '--version' || verb === '-v') {
    print(`${readVersion()}\n`)
    return EXIT.done
  }
  const found = Object.hasOwn(commands, verb) ? commands[verb] : undefined
  if (found === undefined) {
    printError(`polar: unknown command "${verb}". Commands: ${Object.keys(commands).join(', ')}\n`)
    return EXIT.usage
  }
  try {
    const [, load] = found
    return await (await load()).command.execute(rest)
  } catch (error) {
    printError(`${describe(error)}\n`)
    return exitCodeOf(error)
  }
}

function overview(): string {
  const width = Math.max(...Object.keys(commands).map((name) => name.length))
  const lines = Object.entries(commands).map(([name, [summary]]) => `  ${name.padEnd(width)}  ${summary}`)
  return [
    'polar: reinforcement learning over any agent harness, unmodified',
    '',
    'Usage: polar <command> [flags]      (details: polar <command> --help)',
    '',
    ...lines,
    '',
    'Example:',
    '  polar up                                          # in one terminal',
    '  polar task submit examples/tasks/ask.yaml --wait  # in another',
    '',
  ].join('\n')
}

/** Returns the message of a known failure, and the stack of any other error, which is a bug. */
function describe(error: unknown): string {
  if (error instanceof RolloutError) return error.message
  return error instanceof Error ? `polar: internal error\n${error.stack}` : String(error)
}

function exitCodeOf(error: unknown): ExitCode {
  const { code } = toFailure(error)
  if (code.startsWith('config.')) return EXIT.usage
  if (code.startsWith('upstream.') || UNREACHABLE.has(code)) return EXIT.unreachable
  return EXIT.failed
}
