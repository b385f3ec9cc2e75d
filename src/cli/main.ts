#!/usr/bin/env node
import { RolloutError, toFailure } from '../model/failure.ts'
import { allowClosedOutput } from './views/closed-output.ts'
import { EXIT, type Command, type ExitCode } from './command.ts'
import { readVersion } from '../compose/version.ts'
import { print, printError } from './views/print.ts'

/** Commands, loaded on use. `polar --help` lists the summaries. */
const commands: Readonly<Record<string, { summary: string; load: () => Promise<Command> }>> = {
  up: {
    summary: 'Start a server, a node and an engine on this machine',
    load: async () => (await import('./commands/up.ts')).up,
  },
  task: {
    summary: 'Submit tasks to a server, wait for them, get results',
    load: async () => (await import('./commands/task.ts')).task,
  },
  policy: {
    summary: 'Show or set the weight version; pause and resume',
    load: async () => (await import('./commands/policy.ts')).policy,
  },
  run: {
    summary: 'Run tasks on this machine without a server',
    load: async () => (await import('./commands/run.ts')).run,
  },
  record: {
    summary: 'Run a harness and record all its model calls',
    load: async () => (await import('./commands/record.ts')).record,
  },
  server: {
    summary: 'Accept tasks and lease their sessions to nodes',
    load: async () => (await import('./commands/server.ts')).server,
  },
  node: {
    summary: 'Join a server, lease sessions and run them',
    load: async () => (await import('./commands/node.ts')).node,
  },
  cluster: {
    summary: 'Start and stop nodes on many machines with Slurm',
    load: async () => (await import('./commands/cluster.ts')).cluster,
  },
  config: {
    summary: 'Print the effective settings and their origins',
    load: async () => (await import('./commands/config.ts')).config,
  },
  harness: {
    summary: 'Install, list and check harnesses (agent CLIs)',
    load: async () => (await import('./commands/harness.ts')).harness,
  },
  sandbox: {
    summary: 'Run a command in a sandbox; list and remove sandboxes',
    load: async () => (await import('./commands/sandbox.ts')).sandbox,
  },
  show: {
    summary: 'Show a recorded session: calls, answers, tokens',
    load: async () => (await import('./commands/show.ts')).show,
  },
  inspect: {
    summary: 'Show the calls of a session as a tree',
    load: async () => (await import('./commands/inspect.ts')).inspect,
  },
  build: {
    summary: 'Build the training data of a session and report exclusions',
    load: async () => (await import('./commands/build.ts')).build,
  },
  export: {
    summary: 'Export recorded sessions as training data',
    load: async () => (await import('./commands/export.ts')).exportCommand,
  },
  drift: {
    summary: 'Explain where prompts diverge, and suggest rules',
    load: async () => (await import('./commands/drift.ts')).drift,
  },
  gateway: {
    summary: 'Serve the model calls of many sessions, with a control API',
    load: async () => (await import('./commands/gateway.ts')).gateway,
  },
  doctor: {
    summary: 'Check this machine and an engine',
    load: async () => (await import('./commands/doctor.ts')).doctor,
  },
  engine: {
    summary: 'Serve the tiny model, or a script, over the API of vLLM',
    load: async () => (await import('./commands/engine.ts')).engine,
  },
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
  const command = Object.hasOwn(commands, verb) ? commands[verb] : undefined
  if (command === undefined) {
    printError(`polar: unknown command "${verb}". Commands: ${Object.keys(commands).join(', ')}\n`)
    return EXIT.usage
  }
  try {
    return await (await command.load()).execute(rest)
  } catch (error) {
    printError(`${describe(error)}\n`)
    return exitCodeOf(error)
  }
}

function overview(): string {
  const width = Math.max(...Object.keys(commands).map((name) => name.length))
  const lines = Object.entries(commands).map(([name, { summary }]) => `  ${name.padEnd(width)}  ${summary}`)
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
