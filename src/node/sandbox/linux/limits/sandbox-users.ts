import { randomInt } from 'node:crypto'
import * as z from 'zod'
import { runProgram } from '../../../../lib/process/run-program.ts'
import { RolloutError } from '../../../../model/failure.ts'
import type { SandboxSpec } from '../../runtimes/runtime.ts'
import { HOST_ENV } from '../files/paths.ts'

/** Distance between the shared user id and the first user id of a single sandbox. */
const DISTANCE = 1024
const COUNT = 16_384

/** Config key of the runtimes that use `SandboxUsers`. */
export const usersConfig = {
  uid: z
    .int()
    .min(1)
    .max(2 ** 31)
    .default(1_900_000)
    .describe(
      'If the node runs as root: owner of the files of snapshots, and first of the 17408 user ids that sandboxes run as; these users should own no other files',
    ),
}

/** User that the commands of a sandbox run as, if the node is root. Ids are those of this machine. */
export interface SandboxUser {
  uid: number
  /** Owner of the files of snapshots. Equals `uid` for a sandbox without a user of its own. */
  shared: number
  /** Makes the user id available for another sandbox. Idempotent. */
  release(): void
}

/**
 * Allocates the users of sandboxes if the node is root. The kernel counts inotify instances, pending signals,
 * processes, epoll watches, pipe buffers and keys per user, so each sandbox has a user of its own if possible.
 */
export class SandboxUsers {
  readonly #shared: number
  readonly #used = new Set<number>()

  constructor(shared: number) {
    this.#shared = shared
  }

  /**
   * A sandbox runs as the shared user if it needs files of the shared user: in a writable mount, or in a snapshot that
   * cannot be mapped to another user (`canMap`).
   */
  acquire({ snapshot, mounts }: Pick<SandboxSpec, 'snapshot' | 'mounts'>, canMap: boolean): SandboxUser {
    const shared = this.#shared
    if ((snapshot !== undefined && !canMap) || mounts.some(({ isReadOnly }) => !isReadOnly))
      return { uid: shared, shared, release: () => {} }
    // Random, because other processes of this machine may allocate from the same range.
    let uid = shared + DISTANCE + randomInt(COUNT)
    while (this.#used.has(uid) && this.#used.size < COUNT) uid = shared + DISTANCE + randomInt(COUNT)
    this.#used.add(uid)
    return { uid, shared, release: () => void this.#used.delete(uid) }
  }
}

/** Changes the owner of files from the sandbox's user to the shared user, so that any sandbox can start from them. */
export async function shareTree(root: string, { uid, shared }: SandboxUser): Promise<void> {
  if (uid === shared) return
  const command = ['chown', '-R', '-h', `--from=${uid}`, `${shared}:${shared}`, '--', root] as const
  const { exitCode, stderr } = await runProgram(command, { env: HOST_ENV })
  if (exitCode !== 0)
    throw new RolloutError('runtime.copy-failed', `Cannot change the owner of ${root}: ${stderr.trim().slice(-500)}`)
}
