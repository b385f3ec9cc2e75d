import { realpathSync } from 'node:fs'
import { join } from 'node:path'
import type { Config } from '../../config/config.ts'
import { acquireLockFile, identifyProcess } from '../../lib/fs/lock-file.ts'
import { isLoopbackHost } from '../../lib/net/loopback-host.ts'
import { makeDirectories } from '../../lib/fs/make-directories.ts'
import { RolloutError } from '../../model/failure.ts'
import { EXIT, usageError, type ExitCode } from '../command.ts'
import { obtainTokens, readServerNote, writeServerNote } from '../../compose/data-folder.ts'
import { exportedNames } from './exported-names.ts'
import { findAccess, toAccess, type ServerAccess } from './slurm-access.ts'
import { takeDown } from './slurm-down.ts'
import { keepToken, makeWorkDir } from './slurm-files.ts'
import { findLogs, follow, readTail } from './slurm-logs.ts'
import type { Member } from './slurm-members.ts'
import { readRecord, type SlurmRecord, type SubmittedJob } from './slurm-record.ts'
import { awaitJoined, submitNodes, submitServer, type SlurmDeps, type SubmitPlan } from './slurm-up.ts'
import { formatMembers, viewSlurm } from './slurm-view.ts'
import { print, printJson } from '../views/print.ts'

interface UpChoice {
  name: string
  withServer: boolean
  waitMs: number
  asJson: boolean
  moreArguments: readonly string[]
}

export async function up(config: Config, deps: SlurmDeps, choice: UpChoice): Promise<ExitCode> {
  const { access, submitted } = await submitAll(config, deps, choice)
  if (choice.waitMs === 0) return EXIT.done
  const plan = { data: config.data, timeoutMs: choice.waitMs }
  const members = await awaitJoined(submitted, plan, { ...deps, client: access.client })
  printMembers(members, choice.asJson)
  const joined = members.filter(({ state }) => state === 'joined').length
  if (joined >= config.cluster.slurm.nodes) return EXIT.done
  deps.say(`${joined} of ${config.cluster.slurm.nodes} nodes have joined; see: polar cluster slurm logs`)
  return EXIT.failed
}

async function submitAll(
  config: Config,
  deps: SlurmDeps,
  { name, withServer, moreArguments }: UpChoice,
): Promise<{ access: ServerAccess; submitted: SubmittedJob | undefined }> {
  await using _ = await lockData(config.data)
  const plan: SubmitPlan = {
    name,
    config,
    workDir: config.cluster.slurm.work_dir ?? join(config.data, 'slurm'),
    polar: [process.execPath, ...process.execArgv, realpathSync(process.argv[1]!)],
    environment: exportedNames(config, process.env),
  }
  const access = withServer ? await startServer(plan, deps) : await findAccess(config, process.env)
  if (access === undefined)
    throw usageError('cluster', 'name the server with --server URL, or start one with --with-server')
  const { url: server, token, client } = access
  if (isLoopbackHost(new URL(server).hostname))
    deps.say(`Warning: ${server} is a loopback address; nodes on other machines cannot reach it`)
  const submitted = await submitNodes({ ...plan, server, token, moreArguments }, { ...deps, client })
  return { access, submitted }
}

/** Starts the server as a job. Other machines can reach it, so it gets the tokens of the data folder if none are configured. */
async function startServer(plan: SubmitPlan, deps: SlurmDeps): Promise<ServerAccess> {
  const { config, workDir } = plan
  const { host, tokens } = config.server
  await makeWorkDir(workDir)
  const server = { ...config.server, host: isLoopbackHost(host) ? '0.0.0.0' : host }
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
      'server.tokens is configured; name the file of a token of scope node with --token-file FILE',
    )
  const url = await submitServer({ ...plan, config: { ...config, server } }, deps)
  // The server noted 0.0.0.0, its listening address; other commands need its real address.
  const note = await readServerNote(config.data)
  if (note !== undefined) await writeServerNote(config.data, { ...note, url })
  return toAccess(url, token)
}

export async function status(config: Config, deps: SlurmDeps, asJson: boolean): Promise<ExitCode> {
  const record = await readRecord(config.data)
  const access = await accessOf(record, config)
  const view = await viewSlurm(record, { ...deps, client: access?.client, now: () => deps.clock.now() })
  if (view.problem !== undefined && record.jobs.length > 0) deps.say(`State from Slurm only: ${view.problem}`)
  if (view.server !== undefined)
    deps.say(`server: job ${view.server.jobId} is ${view.server.state}, ${record.server?.url ?? 'not ready'}`)
  if (record.jobs.length === 0) deps.say('No nodes were started with this data folder.')
  else printMembers(view.members, asJson)
  return EXIT.done
}

/** Returns the server that `up` started, else the configured server. */
async function accessOf({ server }: SlurmRecord, config: Config): Promise<ServerAccess | undefined> {
  if (server?.url === undefined) return findAccess(config, process.env)
  return findAccess({ ...config, node: { ...config.node, server: server.url } }, process.env)
}

export async function logs(
  config: Config,
  deps: SlurmDeps,
  { wanted, lines, isFollowed }: { wanted: string | undefined; lines: number; isFollowed: boolean },
): Promise<ExitCode> {
  const found = await findLogs(await readRecord(config.data), wanted)
  if (found.length === 0) {
    deps.say(wanted === undefined ? 'No logs yet.' : `No log of "${wanted}" yet.`)
    return EXIT.failed
  }
  const shown = await Promise.all(found.map(async (log) => ({ ...log, ...(await readTail(log.path, lines)) })))
  for (const { name, path, text } of shown) print(`==> ${name} (${path})\n${text}\n`)
  if (!isFollowed) return EXIT.done
  let last = ''
  const write = (name: string, text: string): void => {
    print(name === last ? text : `==> ${name}\n${text}`)
    last = name
  }
  await follow(shown, { clock: deps.clock, signal: deps.signal, write })
  return EXIT.done
}

export async function down(config: Config, deps: SlurmDeps, graceMs: number, keepsServer: boolean): Promise<ExitCode> {
  await using _ = await lockData(config.data)
  const record = await readRecord(config.data)
  if (record.jobs.length === 0 && record.server === undefined) {
    deps.say('No nodes were started with this data folder.')
    return EXIT.done
  }
  const access = await accessOf(record, config)
  const { drained, cancelled } = await takeDown(
    { data: config.data, graceMs, keepsServer },
    { ...deps, client: access?.client },
  )
  deps.say(`${drained} nodes drained, ${cancelled} cancelled`)
  return EXIT.done
}

/** Concurrent commands would submit jobs twice. */
async function lockData(data: string): Promise<AsyncDisposable> {
  await makeDirectories(join(data, 'cluster'), 0o700)
  const outcome = await acquireLockFile(join(data, 'cluster', 'slurm.lock'), await identifyProcess())
  if ('lock' in outcome) return { [Symbol.asyncDispose]: () => outcome.lock.release() }
  const holder =
    outcome.heldBy === undefined ? 'another process' : `process ${outcome.heldBy.pid} on ${outcome.heldBy.host}`
  throw new RolloutError(
    'config.invalid',
    `${holder} is starting or stopping nodes of ${data}. Try again when it has finished.`,
  )
}

function printMembers(members: readonly Member[], asJson: boolean): void {
  if (!asJson) print(formatMembers(members))
  else for (const member of members) printJson(member)
}
