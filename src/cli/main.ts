#!/usr/bin/env node
import { RolloutError, toFailure } from '../model/failure.ts'
import { allowClosedOutput } from './views/closed-output.ts'
import { EXIT, type Command, type ExitCode } from './command.ts'
import { readVersion } from '../compose/version.ts'
import { print, printError } from './views/print.ts'

/** Verbs, loaded on use. The second word is what `polar --help` says of each. */
const commands: Readonly<Record<string, { summary: string; load: () => Promise<Command> }>> = {
  up: {
    summary: 'Server, node and engine with one command, on this machine',
    load: async () => (await import('./commands/up.ts')).up,
  },
  task: {
    summary: 'Submit tasks to a server, follow them, get results',
    load: async () => (await import('./commands/task.ts')).task,
  },
  run: {
    summary: 'Run tasks in sandboxes, build and grade what comes out',
    load: async () => (await import('./commands/run.ts')).run,
  },
  record: {
    summary: 'Run a harness and capture every model call it makes',
    load: async () => (await import('./commands/record.ts')).record,
  },
  server: {
    summary: 'Take tasks from trainers, give their sessions to nodes',
    load: async () => (await import('./commands/server.ts')).server,
  },
  node: {
    summary: 'Join a server and run sessions for it',
    load: async () => (await import('./commands/node.ts')).node,
  },
  cluster: {
    summary: 'Start nodes on many machines with Slurm, and end them',
    load: async () => (await import('./commands/cluster.ts')).cluster,
  },
  config: {
    summary: 'See which settings hold, and where each comes from',
    load: async () => (await import('./commands/config.ts')).config,
  },
  harness: {
    summary: 'Install agent CLIs, and see which are here',
    load: async () => (await import('./commands/harness.ts')).harness,
  },
  sandbox: {
    summary: 'Run a command or a shell in a sandbox, and clean up',
    load: async () => (await import('./commands/sandbox.ts')).sandbox,
  },
  show: {
    summary: 'Read a recorded session: calls, answers, tokens',
    load: async () => (await import('./commands/show.ts')).show,
  },
  inspect: {
    summary: 'How the calls of a session hang together, as a tree',
    load: async () => (await import('./commands/inspect.ts')).inspect,
  },
  build: {
    summary: 'What a session gives to train on, and what it does not',
    load: async () => (await import('./commands/build.ts')).build,
  },
  export: {
    summary: 'Turn recorded sessions into training data',
    load: async () => (await import('./commands/export.ts')).exportCommand,
  },
  drift: {
    summary: 'Explain where prompts break, and write rules against it',
    load: async () => (await import('./commands/drift.ts')).drift,
  },
  gateway: {
    summary: 'Serve model calls of many sessions, with a control API',
    load: async () => (await import('./commands/gateway.ts')).gateway,
  },
  doctor: {
    summary: 'Check this machine and an engine before a long run',
    load: async () => (await import('./commands/doctor.ts')).doctor,
  },
  engine: {
    summary: 'Serve the tiny model, or a script, like a vLLM server',
    load: async () => (await import('./commands/engine.ts')).engine,
  },
}

/** A service of ours that is not there, or not to be spoken to. */
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
    printError(`polar: there is no command "${verb}". Commands: ${Object.keys(commands).join(', ')}\n`)
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
    'Usage: polar <command> [flags]      (polar <command> --help says more)',
    '',
    ...lines,
    '',
    'Example:',
    '  polar up                                          # in one terminal',
    '  polar task submit examples/tasks/ask.yaml --wait  # in another',
    '',
  ].join('\n')
}

/** A failure we know is a sentence; one we do not is a defect, and its stack is what we need. */
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
