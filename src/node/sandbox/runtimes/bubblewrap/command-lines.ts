import { existsSync } from 'node:fs'
import * as z from 'zod'
import { COVERED, INSIDE_PATH } from '../../linux/files/paths.ts'
import { childrenOf, identify, type ProcessRef } from '../../linux/process/processes.ts'
import { usersConfig } from '../../linux/limits/sandbox-users.ts'
import { snapshotConfig } from '../../linux/files/snapshots.ts'

export const BubblewrapConfig = z.strictObject({
  kind: z.literal('bubblewrap'),
  program: z
    .string()
    .default('bwrap')
    .describe('Path of bwrap, or its name in PATH; absent: bwrap is searched, and fetched if it is not installed'),
  visible: z
    .array(z.string().regex(/^(?:\/[\w.-]+)+$/))
    .default(['/usr', '/opt'])
    .describe('Folders of the machine that a sandbox without an image can read'),
  ...usersConfig,
  userNamespaces: z.boolean().default(false).describe('Whether commands may create user namespaces'),
  ...snapshotConfig,
})
export type BubblewrapConfig = z.infer<typeof BubblewrapConfig>

/** Returns the bwrap command for a sandbox or for a command's namespace; they differ in `namespaces`. */
export function bwrapLine(
  { program, userNamespaces }: BubblewrapConfig,
  init: string,
  namespaces: readonly string[],
): string[] {
  const options = ['--die-with-parent', '--as-pid-1', '--unshare-pid', ...namespaces]
  const tree = ['--bind', '/sys/root', '/', '--proc', '/proc', '--dev', '/dev', '--bind', '/sys/rw/shm', '/dev/shm']
  // If a part of /proc is covered, a nested user namespace cannot mount a /proc of its own. A process that can write to
  // /proc can lower its out-of-memory score, unless the score was raised with CAP_SYS_RESOURCE.
  const covered = userNamespaces
    ? []
    : [
        ...COVERED.filter((path) => existsSync(path)).flatMap((path) => ['--ro-bind', '/dev/null', path]),
        '--remount-ro',
        '/proc',
      ]
  const rights = [
    '--remount-ro',
    '/dev',
    '--chdir',
    '/',
    '--cap-drop',
    'ALL',
    '--clearenv',
    '--setenv',
    'PATH',
    INSIDE_PATH,
  ]
  return [program, ...options, ...tree, ...covered, ...rights, '/bin/sh', '-c', init]
}

/** Returns the first process of a bwrap's process namespace. bwrap has no other child except `other`. */
export async function firstOf(monitor: number, other: number): Promise<ProcessRef | undefined> {
  const pid = (await childrenOf(monitor)).find((child) => child !== other)
  return pid === undefined ? undefined : identify(pid)
}
