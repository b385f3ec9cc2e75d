import { loadConfig } from '../../config/load-config.ts'
import { systemClock } from '../../lib/async/clock.ts'
import { down, logs, status, up } from '../cluster/slurm-actions.ts'
import { createSlurmPrograms } from '../cluster/slurm-programs.ts'
import type { SlurmDeps } from '../cluster/slurm-up.ts'
import { defineCommand, EXIT, parseNumber, usageError, type ExitCode } from '../command.ts'
import { PLACE_FLAGS } from '../input/config-flags.ts'
import { listenForStop } from '../stop-signals.ts'
import { printError } from '../views/print.ts'

/** What each flag says, in the words of the file. */
const PATHS = {
  dir: 'data',
  server: 'node.server',
  'token-file': 'node.token_file',
  nodes: 'cluster.slurm.nodes',
  partition: 'cluster.slurm.partition',
  account: 'cluster.slurm.account',
  qos: 'cluster.slurm.qos',
  time: 'cluster.slurm.time',
  cpus: 'cluster.slurm.cpus',
  memory: 'cluster.slurm.memory',
  gres: 'cluster.slurm.gres',
  'work-dir': 'cluster.slurm.work_dir',
} as const

const NAME = /^[A-Za-z][A-Za-z0-9_.-]{0,39}$/
const DAY_SECONDS = 86_400

export const cluster = defineCommand({
  name: 'cluster',
  description: 'Start nodes on many machines as a Slurm job array, watch them, and end them in order.',
  words: {
    name: 'slurm up | slurm status | slurm logs [NODE] | slurm down',
    description: 'What to do; up brings as many nodes as are missing',
  },
  flags: {
    ...PLACE_FLAGS,
    server: { type: 'string', hint: 'URL', description: 'Where the server is, as machines of the cluster reach it' },
    'token-file': { type: 'string', hint: 'FILE', description: 'File with a token for nodes; or set POLAR_TOKEN' },
    'with-server': { type: 'boolean', description: 'up: start the server as a job too' },
    nodes: { type: 'string', hint: 'N', description: 'up: how many there should be' },
    name: {
      type: 'string',
      hint: 'NAME',
      default: 'polar',
      description: 'up: of jobs, and what ids of nodes begin with',
    },
    partition: { type: 'string', hint: 'NAME', description: 'up: as sbatch takes it' },
    account: { type: 'string', hint: 'NAME', description: 'up: as sbatch takes it' },
    qos: { type: 'string', hint: 'NAME', description: 'up: as sbatch takes it' },
    time: { type: 'string', hint: 'TIME', description: 'up: longest that a job may run, as 04:00:00' },
    cpus: { type: 'string', hint: 'N', description: 'up: cores of each machine' },
    memory: { type: 'string', hint: 'SIZE', description: 'up: memory of each machine, as 64G' },
    gres: { type: 'string', hint: 'WHAT', description: 'up: generic resources of each machine, as gpu:8' },
    'work-dir': {
      type: 'string',
      hint: 'DIR',
      description: 'up: folder that all machines share (default: slurm in --dir)',
    },
    wait: {
      type: 'string',
      hint: 'SECONDS',
      default: '600',
      description: 'up: how long for nodes to join; 0 does not',
    },
    grace: {
      type: 'string',
      hint: 'SECONDS',
      default: '600',
      description: 'down: for nodes to finish what they have; with 0 they give it back',
    },
    'keep-server': { type: 'boolean', description: 'down: leave a server that up has started' },
    lines: { type: 'string', hint: 'N', default: '20', description: 'logs: how many of each' },
    follow: { type: 'boolean', description: 'logs: go on as they grow' },
    json: { type: 'boolean', description: 'up, status: print one line of JSON a node' },
  },
  rest: 'flags of polar node, for up',
  examples: [
    'polar cluster slurm up --nodes 8 --partition gpu --server http://login1:8080 --token-file node.token',
    'polar cluster slurm up --config polar.yaml --with-server -- --engine-url http://engine:8000 --run 32',
    'polar cluster slurm status',
    'polar cluster slurm logs --follow',
    'polar cluster slurm down --grace 1800',
  ],
  async run({ flags, words: [manager, action, ...more], rest }): Promise<ExitCode> {
    if (manager !== 'slurm') throw usageError('cluster', `say slurm up, slurm status, slurm logs or slurm down`)
    if (more.length > (action === 'logs' ? 1 : 0)) throw usageError('cluster', `unexpected argument "${more.at(-1)}"`)
    const { config, warnings } = await loadConfig({
      ...(flags.config === undefined ? {} : { file: flags.config }),
      env: process.env,
      flags: Object.entries(PATHS).map(([flag, path]) => ({ flag, path, value: flags[flag as keyof typeof PATHS] })),
    })
    for (const warning of warnings) printError(`Warning: ${warning}\n`)
    if (rest.length > 0 && action !== 'up') throw usageError('cluster', 'nothing may stand after -- but with slurm up')
    using stop = listenForStop()
    const deps: SlurmDeps = {
      programs: createSlurmPrograms(process.env),
      clock: systemClock,
      signal: stop.first,
      say: (line) => printError(`${line}\n`),
    }
    try {
      switch (action) {
        case 'up':
          return await up(config, deps, {
            name: nameOf(flags.name),
            withServer: flags['with-server'],
            waitMs: seconds('wait', flags.wait) * 1000,
            asJson: flags.json,
            moreArguments: rest,
          })
        case 'status':
          return await status(config, deps, flags.json)
        case 'logs':
          return await logs(config, deps, {
            wanted: more[0],
            lines: parseNumber('cluster', 'lines', flags.lines, { min: 0, max: 10_000 }),
            goesOn: flags.follow,
          })
        case 'down':
          return await down(config, deps, seconds('grace', flags.grace) * 1000, flags['keep-server'])
        case undefined:
          throw usageError('cluster', 'say what to do with slurm: up, status, logs or down')
        default:
          throw usageError('cluster', `there is no "slurm ${action}"`)
      }
    } catch (error) {
      if (!stop.first.aborted) throw error
      printError('Stopped waiting. Jobs go on as they are: polar cluster slurm status\n')
      return EXIT.interrupted
    }
  },
})

function nameOf(text: string): string {
  if (NAME.test(text)) return text
  throw usageError('cluster', `--name must be 1-40 letters, digits, "_", "." or "-", a letter first, not "${text}"`)
}

function seconds(flag: string, text: string): number {
  return parseNumber('cluster', flag, text, { min: 0, max: 30 * DAY_SECONDS })
}
