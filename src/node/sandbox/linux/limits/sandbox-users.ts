import { randomInt } from 'node:crypto'
import { runProgram } from '../../../../lib/process/run-program.ts'
import { RolloutError } from '../../../../model/failure.ts'
import type { SandboxSpec } from '../../runtimes/runtime.ts'
import { HOST_ENV } from '../files/paths.ts'

/** Numbers between the shared user and the first user of a single sandbox. */
const DISTANCE = 1024
const COUNT = 16_384

/** Whom the commands of a sandbox run as, by numbers of this machine, where the node is root. */
export interface SandboxUser {
  uid: number
  /** Owner of the files of snapshots. The same as `uid` for a sandbox without a user of its own. */
  shared: number
  /** Lets another sandbox have the number. Idempotent. */
  release(): void
}

/**
 * The users that sandboxes of root run as. The kernel counts inotify instances, pending signals, processes, epoll watches,
 * pipe buffers and keys per user, so each sandbox has a user of its own where that is possible.
 */
export class SandboxUsers {
  readonly #shared: number
  readonly #taken = new Set<number>()

  constructor(shared: number) {
    this.#shared = shared
  }

  /**
   * A sandbox that finds files of the shared user, in a writable mount, or in a snapshot that cannot be shown to it as its
   * own (`canMap`), runs as the shared user.
   */
  acquire({ snapshot, mounts }: Pick<SandboxSpec, 'snapshot' | 'mounts'>, canMap: boolean): SandboxUser {
    const shared = this.#shared
    if ((snapshot !== undefined && !canMap) || mounts.some(({ isReadOnly }) => !isReadOnly))
      return { uid: shared, shared, release: () => {} }
    // Random, because other processes of this machine may have sandboxes of the same range.
    let uid = shared + DISTANCE + randomInt(COUNT)
    while (this.#taken.has(uid) && this.#taken.size < COUNT) uid = shared + DISTANCE + randomInt(COUNT)
    this.#taken.add(uid)
    return { uid, shared, release: () => void this.#taken.delete(uid) }
  }
}

/** Gives files of a sandbox's own user to the shared user, so that any sandbox can start from them. */
export async function shareTree(root: string, { uid, shared }: SandboxUser): Promise<void> {
  if (uid === shared) return
  const command = ['chown', '-R', '-h', `--from=${uid}`, `${shared}:${shared}`, '--', root] as const
  const { exitCode, stderr } = await runProgram(command, { env: HOST_ENV })
  if (exitCode !== 0)
    throw new RolloutError('runtime.copy-failed', `Cannot change the owner of ${root}: ${stderr.trim().slice(-500)}`)
}
