import { existsSync } from 'node:fs'
import type { SpawnedProcess } from '../../sandbox/spawner.ts'
import { createInterface } from 'node:readline'
import * as z from 'zod'
import { RolloutError } from '../../../model/failure.ts'
import { HOST_PATH } from '../../sandbox/hosted-sandbox.ts'
import { childrenOf, identify, type ProcessRef } from '../../sandbox/processes.ts'
import { snapshotConfig } from '../../sandbox/snapshots.ts'

export const BubblewrapConfig = z.strictObject({
  kind: z.literal('bubblewrap'),
  program: z.string().default('bwrap').describe('The bwrap program'),
  visible: z
    .array(z.string().regex(/^(?:\/[\w.-]+)+$/))
    .default(['/usr', '/opt'])
    .describe('Folders of the machine that are visible, read-only, in a sandbox without an image'),
  uid: z
    .int()
    .min(1)
    .max(2 ** 31)
    .default(1_900_000)
    .describe('Whose processes they are on this machine when we are root; should own nothing else'),
  userNamespaces: z.boolean().default(false).describe('Whether a sandbox may make user namespaces of its own'),
  ...snapshotConfig,
})
export type BubblewrapConfig = z.infer<typeof BubblewrapConfig>
export const HOST_ENV = { PATH: HOST_PATH }
export const INSIDE_PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
export const START_MS = 30_000
/** Tells of the machine, not of the sandbox: names of keys, kernel memory, what every processor is about to do. */
const COVERED = ['/proc/keys', '/proc/key-users', '/proc/kcore', '/proc/timer_list']

/** bwrap itself, for a sandbox or for a room of one: what differs are the namespaces. */
export function bwrapLine(
  { program, userNamespaces }: BubblewrapConfig,
  hold: string,
  namespaces: readonly string[],
): string[] {
  const options = ['--die-with-parent', '--as-pid-1', '--unshare-pid', ...namespaces]
  const tree = ['--bind', '/sys/root', '/', '--proc', '/proc', '--dev', '/dev', '--bind', '/sys/rw/shm', '/dev/shm']
  // Where part of /proc is covered, a user namespace inside could not have a /proc of its own.
  const covered = userNamespaces
    ? []
    : COVERED.filter((path) => existsSync(path)).flatMap((path) => ['--ro-bind', '/dev/null', path])
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
  return [program, ...options, ...tree, ...covered, ...rights, '/bin/sh', '-c', hold]
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

/** Waits until the program has printed a line for each word; gives what follows the words. */
export function readyLines<Word extends string>(
  child: SpawnedProcess,
  words: readonly Word[],
  signal: AbortSignal,
): Promise<Record<Word, string>> {
  return new Promise((resolve, reject) => {
    const found = new Map<string, string>()
    let stderr = ''
    child.stderr!.setEncoding('utf8').on('data', (text: string) => (stderr = (stderr + text).slice(-2000)))
    const lines = createInterface({ input: child.stdout! })
    lines.on('line', (line) => {
      const [word = '', rest = ''] = line.split(' ')
      found.set(word, rest)
      if (words.every((each) => found.has(each))) resolve(Object.fromEntries(found) as Record<Word, string>)
    })
    child.once('error', reject)
    child.once('exit', () => setImmediate(() => reject(new Error(stderr.trim() || 'it ended without a word'))))
    signal.addEventListener('abort', () => reject(new Error('it took too long')), { once: true })
    if (signal.aborted) reject(new Error('it took too long'))
  })
}

export function endOf(child: SpawnedProcess): Promise<void> {
  if (child.exitCode !== null || child.signalCode !== null || child.pid === undefined) return Promise.resolve()
  return new Promise((resolve) => child.once('exit', () => resolve()))
}
/** Checked before it is put behind another path: it must not lead out of that. */
export function insidePath(path: string): string {
  const parts = path.split('/').slice(1)
  const isFine =
    path.startsWith('/') && path !== '/' && !parts.some((part) => part === '..' || part === '.' || part === '')
  if (isFine && !/[\0\n]/.test(path)) return path
  throw new RolloutError('runtime.unsupported', `${JSON.stringify(path)} is not an absolute path in its simplest form`)
}
