import { setTimeout as sleep } from 'node:timers/promises'
import { INSIDE_HOME, INSIDE_PATH } from '../../linux/files/paths.ts'
import type { SandboxUser } from '../../linux/limits/sandbox-users.ts'
import type { Isolation } from '../../linux/namespaced-sandbox.ts'
import { isAlive, signalProcess, type ProcessRef } from '../../linux/process/processes.ts'
import type { SpawnedProcess } from '../../linux/process/spawner.ts'
import { untilExit } from '../../linux/process/started.ts'
import type { SandboxSpec } from '../runtime.ts'
import { bwrapLine, type BubblewrapConfig } from './command-lines.ts'

const REAP_MS = 500

export interface BubblewrapProcesses {
  /** bwrap itself, outside; it ends with the sandbox. */
  child: SpawnedProcess
  monitor: ProcessRef
  /** The sandbox's first process. */
  first: ProcessRef
  /** Holds the inner user namespace. */
  holder: ProcessRef
}

export interface BubblewrapOptions {
  /** `program` is the path at which the assembled tree has it. */
  config: BubblewrapConfig
  /** Command prefix that installs the seccomp filter; empty if unsupported. */
  seccompPrefix: readonly string[]
  /** User that we become before entering; undefined if we are that user. */
  user: SandboxUser | undefined
  /** Script of a namespace's first process. */
  init: string
}

export function toIsolation(
  { network, limits }: SandboxSpec,
  { config, seccompPrefix, user, init }: BubblewrapOptions,
  processes: BubblewrapProcesses,
): Isolation {
  const { child, monitor, first, holder } = processes
  const written = `/proc/${monitor.pid}/root/sys/rw`
  const enterNetwork = network.kind === 'open' ? [] : ['-n']
  /** Enters the outer user namespace, in which we are root. */
  const enterUsers = ['nsenter', '--preserve-credentials', '-t', String(monitor.pid), '-U']
  const becomeUser = ['setpriv', ...(user === undefined ? [] : becomeOptions(user)), '--no-new-privs']
  const toNetwork = ['nsenter', '--preserve-credentials', '-t', String(first.pid), '-n']
  return {
    child,
    first,
    processes: [monitor, first, holder],
    env: { PATH: INSIDE_PATH, HOME: INSIDE_HOME },
    memoryStorage: limits.diskMb === undefined ? undefined : written,
    written,
    upper: `${written}/upper`,
    snapshotLayer: 'layer',
    canTell: seccompPrefix.length > 0 && !config.userNamespaces,
    // Root can enter directly, and the helper must be able to read our program files.
    networkPrefix: user === undefined ? [...enterUsers, ...toNetwork] : toNetwork,
    namespaceCommand() {
      const mounts = `--mount=/proc/${monitor.pid}/ns/mnt`
      const enter = ['nsenter', '--preserve-credentials', '-t', String(first.pid), mounts, '-i', '-u', ...enterNetwork]
      return [...becomeUser, ...enterUsers, ...enter, ...bwrapLine(config, init, [])]
    },
    enter({ pid }) {
      const users = ['nsenter', '--preserve-credentials', `--user=/proc/${holder.pid}/ns/user`]
      const enter = [...users, '-t', String(pid), '-m', '-p', '-i', '-u', ...enterNetwork]
      return [...seccompPrefix, ...becomeUser, ...enterUsers, ...enter]
    },
    visit: (command) => [...(user === undefined ? enterUsers : []), ...command],
    end: () => endBubblewrap(processes),
  }
}

/** Options of setpriv that switch to the user. */
export function becomeOptions({ uid, shared }: SandboxUser): string[] {
  return ['--reuid', String(uid), '--regid', String(shared), '--clear-groups']
}

/**
 * In this order, bwrap, the parent of both, reaps them and ends by itself; a machine may have no other process that
 * reaps.
 */
async function endBubblewrap({ child, first, holder }: BubblewrapProcesses): Promise<void> {
  const ended = untilExit(child)
  await signalProcess(holder, 'SIGKILL')
  while (await isAlive(holder)) await sleep(1)
  await signalProcess(first, 'SIGKILL')
  await Promise.race([ended, sleep(REAP_MS, undefined, { ref: false })])
  child.kill('SIGKILL')
  await ended
  // The first process ends after all others.
  while (await isAlive(first)) await sleep(2)
}
