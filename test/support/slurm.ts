import { type ChildProcess, execFileSync, spawn, spawnSync } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { chmodSync, mkdirSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { hostname, tmpdir } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'

/** A real Slurm: one controller and several machines, all on this machine. */
export interface Slurm extends AsyncDisposable {
  dir: string
  /** Variables with which Slurm's programs find the controller. */
  env: Readonly<Record<string, string>>
  machines: readonly string[]
  /** Runs one of Slurm's programs and returns its output. */
  ask(program: string, ...args: string[]): string
  /** Processes of the machine's jobs, oldest first: slurmstepd and its descendants. */
  processesOf(machine: string): { stepd: number[]; jobs: number[] }
  /** Disconnects a machine from Slurm. Its jobs continue unless `killJobs` is set. */
  loseMachine(machine: string, which: { killJobs: boolean }): void
}

const PROGRAMS = ['munged', 'slurmctld', 'slurmd', 'sbatch', 'squeue', 'scancel', 'scontrol', 'sinfo', 'setpriv']
const READY_MS = 30_000

/** Returns the reason why Slurm cannot be started here; undefined if it can. */
export function whyNoSlurm(): string | undefined {
  if (process.getuid?.() !== 0) return 'only root can start the Slurm daemons of this test: run npm test as root'
  const missing = PROGRAMS.find((program) => spawnSync('which', [program], { stdio: 'ignore' }).status !== 0)
  return missing === undefined
    ? undefined
    : `${missing} is not installed: apt-get install munge slurmctld slurmd slurm-client`
}

/** Starts Slurm in a new folder, with its own munge, on free loopback ports. Disposal removes everything, including jobs. */
export async function startSlurm({ machines: count }: { machines: number }): Promise<Slurm> {
  const dir = mkdtempSync(join(tmpdir(), 'polar-slurm-'))
  // Munge requires that every user can open its socket.
  chmodSync(dir, 0o755)
  const machines = Array.from({ length: count }, (_, index) => `n${index + 1}`)
  const [controllerPort, ...ports] = await freePorts(count + 1)
  const conf = join(dir, 'slurm.conf')
  writeFileSync(conf, configOf(dir, { controllerPort: controllerPort!, machines, ports }))
  for (const name of ['state', 'spool', 'log', 'munge']) mkdirSync(join(dir, name), { mode: 0o755 })
  writeFileSync(join(dir, 'munge/key'), randomBytes(128), { mode: 0o600 })
  const path = `${process.env['PATH'] ?? ''}:/usr/sbin:/sbin`
  const env = { PATH: path, HOME: process.env['HOME'] ?? '/root', SLURM_CONF: conf }
  const daemons = new Map<string, ChildProcess>()
  const start = (name: string, command: readonly string[]): void => {
    // The process receives SIGKILL when this process ends.
    const args = ['--pdeathsig=KILL', ...command]
    const log = join(dir, 'log', `${name}.out`)
    writeFileSync(log, '')
    daemons.set(name, spawn('setpriv', args, { env, cwd: dir, stdio: ['ignore', 'ignore', 'ignore'] }))
  }
  const ask = (program: string, ...args: string[]): string =>
    execFileSync(program, args, { env, encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] })
  const slurm: Slurm = {
    dir,
    env,
    machines,
    ask,
    processesOf: (machine) => processesOf(conf, machine),
    loseMachine(machine, { killJobs }) {
      daemons.get(machine)?.kill('SIGKILL')
      const { stepd, jobs } = processesOf(conf, machine)
      for (const pid of [...stepd, ...(killJobs ? jobs : [])]) killIfThere(pid)
    },
    async [Symbol.asyncDispose]() {
      await Promise.all([...daemons.values()].map(stop))
      // Jobs of dead daemons have another parent; they are found by the configuration file in their environment.
      for (let round = 0; round < 40; round += 1) {
        const left = machines.flatMap((machine) => Object.values(processesOf(conf, machine)).flat())
        if (left.length === 0) break
        for (const pid of left) killIfThere(pid)
        await sleep(50)
      }
      rmSync(dir, { recursive: true, force: true, maxRetries: 10, retryDelay: 100 })
    },
  }
  try {
    const munge = (name: string): string => join(dir, 'munge', name)
    const files = ['socket', 'key', 'pid', 'log', 'seed'].map(
      (name) => `--${name}${name === 'socket' ? '' : '-file'}=${munge(name)}`,
    )
    start('munged', ['munged', '--foreground', '--num-threads=2', ...files])
    start('slurmctld', ['slurmctld', '-D', '-f', conf])
    for (const machine of machines) start(machine, ['slurmd', '-D', '-N', machine, '-f', conf])
    await untilIdle(slurm)
    return slurm
  } catch (error) {
    await slurm[Symbol.asyncDispose]()
    throw error
  }
}

function configOf(
  dir: string,
  {
    controllerPort,
    machines,
    ports,
  }: { controllerPort: number; machines: readonly string[]; ports: readonly number[] },
): string {
  const host = hostname().split('.')[0]
  return [
    'ClusterName=polar',
    `SlurmctldHost=${host}(127.0.0.1)`,
    `SlurmctldPort=${controllerPort}`,
    'SlurmUser=root',
    'SlurmdUser=root',
    'AuthType=auth/munge',
    'CredType=cred/munge',
    // Delay of a requeued job.
    `AuthInfo=socket=${join(dir, 'munge/socket')},cred_expire=5`,
    'CommunicationParameters=NoCtldInAddrAny,NoInAddrAny',
    `StateSaveLocation=${join(dir, 'state')}`,
    `SlurmdSpoolDir=${join(dir, 'spool/%n')}`,
    `SlurmctldPidFile=${join(dir, 'slurmctld.pid')}`,
    `SlurmdPidFile=${join(dir, 'slurmd-%n.pid')}`,
    `SlurmctldLogFile=${join(dir, 'log/slurmctld.log')}`,
    `SlurmdLogFile=${join(dir, 'log/slurmd-%n.log')}`,
    'ProctrackType=proctrack/linuxproc',
    'TaskPlugin=task/none',
    'JobAcctGatherType=jobacct_gather/none',
    'SelectType=select/cons_tres',
    'SelectTypeParameters=CR_CPU',
    'SchedulerParameters=sched_interval=1,batch_sched_delay=1,sched_min_interval=100000',
    'SlurmdParameters=config_overrides',
    'MpiDefault=none',
    'MailProg=/bin/true',
    'ReturnToService=2',
    'SlurmdTimeout=6',
    'MessageTimeout=3',
    'SlurmctldTimeout=10',
    'KillWait=5',
    'MinJobAge=300',
    ...machines.map(
      (machine, index) => `NodeName=${machine} NodeHostname=${host} NodeAddr=127.0.0.1 Port=${ports[index]} CPUs=2`,
    ),
    `PartitionName=rollouts Nodes=${machines.join(',')} Default=YES MaxTime=60 State=UP`,
    '',
  ].join('\n')
}

async function untilIdle(slurm: Slurm): Promise<void> {
  const deadline = Date.now() + READY_MS
  let said = ''
  for (;;) {
    try {
      said = slurm.ask('sinfo', '--noheader', '--Node', '--format=%T')
      if (said.split('\n').filter((state) => state === 'idle').length === slurm.machines.length) return
    } catch (error) {
      said = String(error)
    }
    if (Date.now() > deadline) throw new Error(`Slurm did not start: ${said}\n${lastLines(slurm.dir)}`)
    await sleep(100)
  }
}

function lastLines(dir: string): string {
  const logs = readdirSync(join(dir, 'log'))
  return logs.map((name) => `${name}: ${readFileSync(join(dir, 'log', name), 'utf8').slice(-800)}`).join('\n')
}

/** Finds jobs by their environment, which contains the name of the machine, and slurmstepd, which has none, by its child. */
function processesOf(conf: string, machine: string): { stepd: number[]; jobs: number[] } {
  const stepd = new Set<number>()
  const jobs: number[] = []
  const pids = readdirSync('/proc').flatMap((name) => (/^\d+$/.test(name) ? [Number(name)] : []))
  for (const pid of pids.sort((a, b) => a - b)) {
    const environment = readProc(pid, 'environ').split('\0')
    if (!environment.includes(`SLURM_CONF=${conf}`) || !environment.includes(`SLURMD_NODENAME=${machine}`)) continue
    jobs.push(pid)
    const parent = Number(/^PPid:\s*(\d+)$/m.exec(readProc(pid, 'status'))?.[1])
    if (readProc(parent, 'cmdline').startsWith('slurmstepd:')) stepd.add(parent)
  }
  return { stepd: [...stepd], jobs }
}

function readProc(pid: number, name: string): string {
  try {
    return readFileSync(`/proc/${pid}/${name}`, 'utf8')
  } catch {
    return ''
  }
}

function killIfThere(pid: number): void {
  try {
    process.kill(pid, 'SIGKILL')
  } catch {
    // The process has already ended.
  }
}

async function stop(daemon: ChildProcess): Promise<void> {
  if (daemon.exitCode !== null || daemon.signalCode !== null) return
  daemon.kill('SIGKILL')
  await once(daemon, 'exit')
}

async function freePorts(count: number): Promise<number[]> {
  const servers = await Promise.all(
    Array.from({ length: count }, async () => {
      const server = createServer().listen(0, '127.0.0.1')
      await once(server, 'listening')
      return server
    }),
  )
  const ports = servers.map((server) => (server.address() as AddressInfo).port)
  await Promise.all(servers.map((server) => new Promise((resolve) => server.close(resolve))))
  return ports
}
