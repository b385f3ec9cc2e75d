import { realpathSync } from 'node:fs'
import { join } from 'node:path'
import type { Config } from '../../config/config.ts'
import { loadConfig } from '../../config/load-config.ts'
import { acquireLockFile, identifyProcess } from '../../lib/lock-file.ts'
import { systemClock } from '../../lib/clock.ts'
import { makeDirectories } from '../../lib/make-directories.ts'
import { RolloutError } from '../../model/failure.ts'
import { exportedNames } from '../cluster/exported-names.ts'
import { findAccess, toAccess, type ServerAccess } from '../cluster/slurm-access.ts'
import { takeDown } from '../cluster/slurm-down.ts'
import { keepToken, makeWorkDir } from '../cluster/slurm-files.ts'
import { findLogs, follow, readTail } from '../cluster/slurm-logs.ts'
import type { Member } from '../cluster/slurm-members.ts'
import { createSlurmPrograms } from '../cluster/slurm-programs.ts'
import { readRecord } from '../cluster/slurm-record.ts'
import { awaitJoined, submitNodes, submitServer, type SlurmDeps, type SubmitPlan } from '../cluster/slurm-up.ts'
import { formatMembers, viewSlurm } from '../cluster/slurm-view.ts'
import { defineCommand, EXIT, parseNumber, usageError, type ExitCode } from '../command.ts'
import { PLACE_FLAGS } from '../config-flags.ts'
import { obtainTokens, readServerNote, writeServerNote } from '../data-folder.ts'
import { isLoopback } from '../loopback.ts'
import { listenForStop } from '../stop-signals.ts'

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
    'polar cluster slurm up --config polar.yaml --with-server -- --upstream http://engine:8000 --run 32',
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
    for (const warning of warnings) process.stderr.write(`Warning: ${warning}\n`)
    if (rest.length > 0 && action !== 'up') throw usageError('cluster', 'nothing may stand after -- but with slurm up')
    using stop = listenForStop()
    const deps: SlurmDeps = {
      programs: createSlurmPrograms(process.env),
      clock: systemClock,
      signal: stop.first,
      say: (line) => process.stderr.write(`${line}\n`),
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
        default:
          throw usageError('cluster', action === undefined ? 'say what to do' : `there is no "slurm ${action}"`)
      }
    } catch (error) {
      if (!stop.first.aborted) throw error
      process.stderr.write('Stopped waiting. Jobs go on as they are: polar cluster slurm status\n')
      return EXIT.interrupted
    }
  },
})

interface UpChoice {
  name: string
  withServer: boolean
  waitMs: number
  asJson: boolean
  moreArguments: readonly string[]
}

async function up(config: Config, deps: SlurmDeps, choice: UpChoice): Promise<ExitCode> {
  await using _ = await lockData(config.data)
  const workDir = config.cluster.slurm.work_dir ?? join(config.data, 'slurm')
  const plan: SubmitPlan = {
    name: choice.name,
    config,
    workDir,
    polar: [process.execPath, ...process.execArgv, realpathSync(process.argv[1]!)],
    environment: exportedNames(config, process.env),
  }
  const access = choice.withServer ? await startServer(plan, deps) : await findAccess(config, process.env)
  if (access === undefined)
    throw usageError('cluster', `say where the server is with --server URL, or have one started with --with-server`)
  if (isLoopback(new URL(access.url).hostname))
    deps.say(`Warning: ${access.url} is known to this machine only; nodes on others will not find it`)
  const withClient = { ...deps, client: access.client }
  await submitNodes(
    { ...plan, server: access.url, token: access.token, moreArguments: choice.moreArguments },
    withClient,
  )
  const { jobs } = await readRecord(config.data)
  if (choice.waitMs === 0) return EXIT.done
  const members = await awaitJoined(jobs, { timeoutMs: choice.waitMs }, withClient)
  print(members, choice.asJson)
  const joined = members.filter(({ state }) => state === 'joined').length
  if (joined >= config.cluster.slurm.nodes) return EXIT.done
  deps.say(`${joined} of ${config.cluster.slurm.nodes} nodes have joined; see: polar cluster slurm logs`)
  return EXIT.failed
}

/** With tokens of the data folder where none are configured: it can be reached from other machines. */
async function startServer(plan: SubmitPlan, deps: SlurmDeps): Promise<ServerAccess> {
  const { config, workDir } = plan
  const { host, tokens } = config.server
  await makeWorkDir(workDir)
  const server = { ...config.server, host: isLoopback(host) ? '0.0.0.0' : host }
  const configured = await findAccess(config, process.env)
  let token = configured?.token
  if (tokens.length === 0) {
    await makeDirectories(config.data, 0o700)
    const own = await obtainTokens(config.data)
    const scopes = [['trainer', ['trainer', 'read']] as const, ['node', ['node']] as const, ['read', ['read']] as const]
    server.tokens = await Promise.all(
      scopes.map(async ([name, of]) => ({
        name,
        scopes: [...of],
        token_file: await keepToken(workDir, `server-${name}.token`, own[name]),
      })),
    )
    token = own.node
  }
  if (token === undefined)
    throw usageError(
      'cluster',
      'server.tokens are configured, so say which of them is for nodes with --token-file FILE',
    )
  const url = await submitServer({ ...plan, config: { ...config, server } }, deps)
  // It wrote down the address it listens on, which is that of any machine; whoever has this folder needs the real one.
  const note = await readServerNote(config.data)
  if (note !== undefined) await writeServerNote(config.data, { ...note, url })
  return toAccess(url, token)
}

async function status(config: Config, deps: SlurmDeps, asJson: boolean): Promise<ExitCode> {
  const record = await readRecord(config.data)
  const access =
    record.server?.url === undefined
      ? await findAccess(config, process.env)
      : await ownAccess(config, record.server.url)
  const view = await viewSlurm(record, { ...deps, client: access?.client, now: () => deps.clock.now() })
  if (view.problem !== undefined && record.jobs.length > 0) deps.say(`Only what Slurm says: ${view.problem}`)
  if (view.server !== undefined)
    deps.say(`server: job ${view.server.jobId} is ${view.server.state}, ${record.server?.url ?? 'not ready'}`)
  if (record.jobs.length === 0) deps.say('No nodes have been started from here.')
  else print(view.members, asJson)
  return EXIT.done
}

/** The server we started, with the token it was started with unless another is configured. */
async function ownAccess(config: Config, url: string): Promise<ServerAccess | undefined> {
  return findAccess({ ...config, node: { ...config.node, server: url } }, process.env)
}

async function logs(
  config: Config,
  deps: SlurmDeps,
  { wanted, lines, goesOn }: { wanted: string | undefined; lines: number; goesOn: boolean },
): Promise<ExitCode> {
  const found = await findLogs(await readRecord(config.data), wanted)
  if (found.length === 0) {
    deps.say(wanted === undefined ? 'There are no logs yet.' : `There is no log of "${wanted}" yet.`)
    return EXIT.failed
  }
  const shown = await Promise.all(found.map(async (log) => ({ ...log, ...(await readTail(log.path, lines)) })))
  for (const { name, path, text } of shown) process.stdout.write(`==> ${name} (${path})\n${text}\n`)
  if (!goesOn) return EXIT.done
  let last = ''
  const write = (name: string, text: string): void => {
    process.stdout.write(name === last ? text : `==> ${name}\n${text}`)
    last = name
  }
  await follow(shown, { clock: deps.clock, signal: deps.signal, write })
  return EXIT.done
}

async function down(config: Config, deps: SlurmDeps, graceMs: number, keepsServer: boolean): Promise<ExitCode> {
  await using _ = await lockData(config.data)
  const record = await readRecord(config.data)
  if (record.jobs.length === 0 && record.server === undefined) {
    deps.say('No nodes have been started from here.')
    return EXIT.done
  }
  const access =
    record.server?.url === undefined
      ? await findAccess(config, process.env)
      : await ownAccess(config, record.server.url)
  const { drained, cancelled } = await takeDown(
    { data: config.data, graceMs, keepsServer },
    { ...deps, client: access?.client },
  )
  deps.say(`${drained} nodes finished, ${cancelled} were ended`)
  return EXIT.done
}

/** Two at a time would submit twice. */
async function lockData(data: string): Promise<AsyncDisposable> {
  await makeDirectories(join(data, 'cluster'), 0o700)
  const outcome = await acquireLockFile(join(data, 'cluster', 'slurm.lock'), await identifyProcess())
  if ('lock' in outcome) return { [Symbol.asyncDispose]: () => outcome.lock.release() }
  const who = outcome.heldBy === undefined ? 'another' : `process ${outcome.heldBy.pid} on ${outcome.heldBy.host}`
  throw new RolloutError('config.invalid', `${who} is starting or ending nodes of ${data}; wait for it.`)
}

function print(members: readonly Member[], asJson: boolean): void {
  process.stdout.write(
    asJson ? members.map((member) => `${JSON.stringify(member)}\n`).join('') : formatMembers(members),
  )
}

function nameOf(text: string): string {
  if (NAME.test(text)) return text
  throw usageError('cluster', `--name must be 1-40 letters, digits, "_", "." or "-", a letter first, not "${text}"`)
}

function seconds(flag: string, text: string): number {
  return parseNumber('cluster', flag, text, { min: 0, max: 30 * DAY_SECONDS })
}
