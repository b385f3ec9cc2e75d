import { type ChildProcess, execFileSync, spawn } from 'node:child_process'
import { once } from 'node:events'
import { existsSync, readdirSync } from 'node:fs'
import { chmod, mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { setTimeout as sleep } from 'node:timers/promises'

export interface Postgres extends AsyncDisposable {
  /** Creates an empty database and returns its URL. */
  createDatabase(name: string): Promise<string>
  /** Kills the server as a power loss would, and starts it again. */
  crash(options?: { signal?: 'SIGQUIT' | 'SIGKILL'; downMs?: number }): Promise<void>
}

const PROGRAMS = '/usr/lib/postgresql'
const USER = 'polar'
/** PostgreSQL does not run as root. Every Debian has this user. */
const SYSTEM_USER = { user: 'nobody', group: 'nogroup' }

/** Returns the reason why PostgreSQL cannot be started here; undefined if it can. */
export function whyNoPostgres(): string | undefined {
  return findPrograms() === undefined
    ? `PostgreSQL is not installed below ${PROGRAMS}: apt-get install postgresql`
    : undefined
}

/** Starts a separate cluster in a new folder with a socket in that folder. Disposal deletes its data. */
export async function startPostgres({ fsync = false }: { fsync?: boolean } = {}): Promise<Postgres> {
  const programs = findPrograms()
  if (programs === undefined) throw new Error(whyNoPostgres())
  const dir = await mkdtemp(join(tmpdir(), 'polar-postgres-'))
  await chmod(dir, 0o777)
  const data = join(dir, 'data')
  const [initdb, ...initArguments] = asUser(join(programs, 'initdb'))
  execFileSync(initdb, [...initArguments, '-D', data, '-U', USER, '-A', 'trust', '-E', 'UTF8', '--no-locale', '-N'], {
    cwd: dir,
    stdio: ['ignore', 'ignore', 'inherit'],
  })
  let server = await startServer(programs, dir, data, fsync)
  return {
    async createDatabase(name) {
      execFileSync(join(programs, 'createdb'), ['-h', dir, '-U', USER, name], { stdio: 'inherit' })
      return `postgres://${USER}@/${name}?host=${dir}`
    },
    async crash({ signal = 'SIGQUIT', downMs = 0 } = {}) {
      await stop(server, signal)
      await sleep(downMs)
      server = await startAgain(() => startServer(programs, dir, data, fsync))
    },
    async [Symbol.asyncDispose]() {
      await stop(server, 'SIGINT')
      await rm(dir, { recursive: true, force: true })
    },
  }
}

function findPrograms(): string | undefined {
  if (!existsSync(PROGRAMS)) return undefined
  const [newest] = readdirSync(PROGRAMS).sort((a, b) => Number(b) - Number(a))
  const programs = join(PROGRAMS, newest ?? '', 'bin')
  return existsSync(join(programs, 'initdb')) ? programs : undefined
}

/** The process receives SIGKILL when this process ends. */
function asUser(program: string): [string, ...string[]] {
  const user =
    process.getuid?.() === 0 ? [`--reuid=${SYSTEM_USER.user}`, `--regid=${SYSTEM_USER.group}`, '--clear-groups'] : []
  return ['setpriv', ...user, '--pdeathsig=INT', program]
}

async function startServer(programs: string, dir: string, data: string, fsync: boolean): Promise<ChildProcess> {
  const [program, ...given] = asUser(join(programs, 'postgres'))
  const settings = { listen_addresses: '', fsync: fsync ? 'on' : 'off', max_connections: '60', shared_buffers: '64MB' }
  const options = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`])
  const server = spawn(program, [...given, '-D', data, '-k', dir, ...options], {
    cwd: dir,
    stdio: ['ignore', 'ignore', 'pipe'],
  })
  const lines: string[] = []
  for await (const line of createInterface(server.stderr)) {
    if (line.includes('ready to accept connections')) {
      server.stderr.resume()
      return server
    }
    lines.push(line)
  }
  throw new Error(`PostgreSQL did not start:\n${lines.join('\n')}`)
}

/** Retries, because the server cannot start until all processes of the previous server have ended. */
async function startAgain(start: () => Promise<ChildProcess>): Promise<ChildProcess> {
  for (let tries = 1; ; tries += 1) {
    try {
      return await start()
    } catch (error) {
      if (tries >= 50) throw error
      await sleep(100)
    }
  }
}

async function stop(server: ChildProcess, signal: NodeJS.Signals): Promise<void> {
  if (server.exitCode !== null || server.signalCode !== null) return
  server.kill(signal)
  await once(server, 'exit')
}
