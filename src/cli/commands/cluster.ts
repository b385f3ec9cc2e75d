import { systemClock } from '../../lib/async/clock.ts'
import { down, logs, status, up } from '../cluster/slurm-actions.ts'
import { createSlurmPrograms } from '../cluster/slurm-programs.ts'
import type { SlurmDeps } from '../cluster/slurm-up.ts'
import { actionError, defineCommand, EXIT, option, parseNumber, toggle, usageError, type ExitCode } from '../command.ts'
import { DATA_FLAGS, loadFromFlags } from '../input/config-flags.ts'
import { listenForStop } from '../stop-signals.ts'
import { printError } from '../views/print.ts'

/** Config path that each flag sets. */
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
}

const ACTIONS = 'slurm up, slurm status, slurm logs or slurm down'
const NAME = /^[A-Za-z][A-Za-z0-9_.-]{0,39}$/
const DAY_SECONDS = 86_400

export const command = defineCommand({
  name: 'cluster',
  description: 'Start nodes on many machines as a Slurm job array, show their status and logs, and drain them.',
  words: {
    name: 'slurm up | slurm status | slurm logs [NODE] | slurm down',
    description: 'Action; up starts the nodes that are missing',
  },
  flags: {
    ...DATA_FLAGS,
    server: option('URL', 'URL of the server, as machines of the cluster reach it'),
    'token-file': option('FILE', 'File with a token of scope node; or set POLAR_TOKEN'),
    'with-server': toggle('up: also start the server as a job'),
    nodes: option('N', 'up: number of nodes'),
    name: option('NAME', 'up: name of the jobs and prefix of the node ids', { default: 'polar' }),
    partition: option('NAME', 'up: --partition of sbatch'),
    account: option('NAME', 'up: --account of sbatch'),
    qos: option('NAME', 'up: --qos of sbatch'),
    time: option('TIME', 'up: time limit of a job, such as 04:00:00'),
    cpus: option('N', 'up: cores of each machine'),
    memory: option('SIZE', 'up: memory of each machine, such as 64G'),
    gres: option('WHAT', 'up: generic resources of each machine, such as gpu:8'),
    'work-dir': option('DIR', 'up: folder that all machines share (default: slurm in --dir)'),
    wait: option('SECONDS', 'up: how long to wait until the nodes have joined; 0 does not wait', { default: '600' }),
    grace: option('SECONDS', 'down: how long nodes may finish their sessions; with 0 they return them to the queue', {
      default: '600',
    }),
    'keep-server': toggle('down: keep a server that up started'),
    lines: option('N', 'logs: number of last lines of each log', { default: '20' }),
    follow: toggle('logs: print new lines as they are written'),
    json: toggle('up, status: print one line of JSON for each node'),
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
    if (manager !== 'slurm') throw actionError('cluster', undefined, ACTIONS)
    if (more.length > (action === 'logs' ? 1 : 0)) throw usageError('cluster', `unexpected argument "${more.at(-1)}"`)
    const { config } = await loadFromFlags(flags, process.env, PATHS)
    if (rest.length > 0 && action !== 'up') throw usageError('cluster', 'arguments after -- are only for slurm up')
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
            isFollowed: flags.follow,
          })
        case 'down':
          return await down(config, deps, seconds('grace', flags.grace) * 1000, flags['keep-server'])
        case undefined:
        default:
          throw actionError('cluster', action && `slurm ${action}`, ACTIONS)
      }
    } catch (error) {
      if (!stop.first.aborted) throw error
      printError('Stopped waiting. The jobs continue; see: polar cluster slurm status\n')
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
