import { existsSync } from 'node:fs'
import * as z from 'zod'
import { COVERED, INSIDE_PATH } from '../../linux/files/paths.ts'
import { childrenOf, identify, type ProcessRef } from '../../linux/process/processes.ts'
import { snapshotConfig } from '../../linux/files/snapshots.ts'

export const BubblewrapConfig = z.strictObject({
  kind: z.literal('bubblewrap'),
  program: z
    .string()
    .default('bwrap')
    .describe('The bwrap program: a path or a name in PATH. Not set and none installed: one is fetched'),
  visible: z
    .array(z.string().regex(/^(?:\/[\w.-]+)+$/))
    .default(['/usr', '/opt'])
    .describe('Folders of the machine that are visible, read-only, in a sandbox without an image'),
  uid: z
    .int()
    .min(1)
    .max(2 ** 31)
    .default(1_900_000)
    .describe(
      'Owner of the files of snapshots when we are root, and first of the 17408 user numbers that sandboxes run as; these users should own nothing else',
    ),
  userNamespaces: z.boolean().default(false).describe('Whether a sandbox may make user namespaces of its own'),
  ...snapshotConfig,
})
export type BubblewrapConfig = z.infer<typeof BubblewrapConfig>

/** bwrap itself, for a sandbox or for a room of one: what differs are the namespaces. */
export function bwrapLine(
  { program, userNamespaces }: BubblewrapConfig,
  init: string,
  namespaces: readonly string[],
): string[] {
  const options = ['--die-with-parent', '--as-pid-1', '--unshare-pid', ...namespaces]
  const tree = ['--bind', '/sys/root', '/', '--proc', '/proc', '--dev', '/dev', '--bind', '/sys/rw/shm', '/dev/shm']
  // Where part of /proc is covered, a user namespace inside could not have a /proc of its own. A process that may write to
  // /proc can lower its out-of-memory score, unless it was raised with CAP_SYS_RESOURCE.
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

/** Leads to the outer user namespace, where we are root. */
export function enterUsers(monitor: ProcessRef): string[] {
  return ['nsenter', '--preserve-credentials', '-t', String(monitor.pid), '-U']
}

/** The first process of the namespace that a bwrap made, which has no other child but perhaps that one. */
export async function firstOf(monitor: number, other?: number): Promise<ProcessRef | undefined> {
  const pid = (await childrenOf(monitor)).find((child) => child !== other)
  return pid === undefined ? undefined : identify(pid)
}
