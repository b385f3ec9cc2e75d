import { posix } from 'node:path'
import { RolloutError } from '../../model/failure.ts'
import type { LeftOut, Workspace } from '../../model/workspace.ts'
import { tail } from './run-grading.ts'

/** Maximum size of a list of links. */
const LIST_BYTES = 64 * 1024 * 1024
const LIST_MS = 120_000
/** Number of links that the kernel follows for one path. */
const MOST_HOPS = 40

/** Prints links and their targets. GNU find prints targets itself; other versions need readlink. */
const PRINT = String.raw`print_links() {
  if find / -maxdepth 0 -printf '' 2> /dev/null; then find "$@" -printf '%p\0%l\0'; return; fi
  find "$@" -exec sh -c 'for l; do printf "%s\0" "$l"; readlink -n -- "$l"; printf "\0"; done' sh {} +
}
`
const IN_FOLDER = String.raw`
if [ -L "$1" ]; then printf '.\0'; readlink -n -- "$1"; printf '\0'; exit; fi
[ -d "$1" ] && cd -- "$1" || exit 0
print_links . -type l 2> /dev/null || :`
/** Makes folders readable first: a folder that cannot be listed would hide its links. */
const EVERYWHERE = String.raw`
print_links / "$1" -xdev \( -path /proc -o -path /sys -o -path /dev \) -prune -o \
  -type d ! -perm -0500 -exec chmod u+rx {} ';' -o -type l 2> /dev/null || :`
/** Prints the arguments that are links. */
const OF_PATHS = String.raw`
for l; do if [ -L "$l" ]; then printf '%s\0' "$l"; readlink -n -- "$l"; printf '\0'; fi; done`

/** Returns the links below a folder with their targets. If the folder itself is a link, its path is empty. */
export async function linksIn(workspace: Workspace, folder: string): Promise<Map<string, string>> {
  const found = await list(workspace, PRINT + IN_FOLDER, [folder])
  return new Map([...found].map(([path, text]) => [posix.relative('.', path), text]))
}

/** Returns the paths that are links, with their targets. */
function linksOf(workspace: Workspace, paths: readonly string[]): Promise<Map<string, string>> {
  return paths.length === 0 ? Promise.resolve(new Map()) : list(workspace, OF_PATHS, paths)
}

/**
 * Removes links among the parent folders of `target` in a sandbox with the agent's final files: such a link would redirect
 * files to a path that the agent chose. Links that a clean sandbox also has stay.
 */
export async function clearWayTo(grader: Workspace, target: string, clean: () => Promise<Workspace>): Promise<void> {
  const folders: string[] = []
  for (let folder = posix.dirname(target); folder !== '/'; folder = posix.dirname(folder)) folders.unshift(folder)
  const found = await linksOf(grader, folders)
  if (found.size > 0) await remove(grader, await withoutOwn(found, clean))
}

/**
 * Removes the links that lead into `folders` from outside, in a sandbox with the agent's final files. Links that a clean
 * sandbox also has stay. Returns the removed links.
 */
export async function removeLinksInto(
  grader: Workspace,
  folders: readonly string[],
  clean: () => Promise<Workspace>,
): Promise<LeftOut[]> {
  const links = await list(grader, PRINT + EVERYWHERE, [grader.workdir])
  const targets = [...folders, ...folders.map((folder) => stepsOf(folder, links).at(-1)!)]
  const leading = new Map([...links].filter(([path]) => !isIn(path, targets) && leadsInto(path, links, targets)))
  if (leading.size === 0) return []
  const foreign = await withoutOwn(leading, clean)
  await remove(grader, foreign)
  return foreign.map((path) => ({ path, why: "the link leads to the grader's own files" }))
}

/**
 * Whether a resolved path passes through one of the folders, ends above one of them, or passes through a folder whose meaning
 * depends on the process.
 */
export function leadsInto(path: string, links: ReadonlyMap<string, string>, folders: readonly string[]): boolean {
  const steps = stepsOf(path, links)
  const end = steps.at(-1)!
  const isAbove = folders.some((folder) => isIn(folder, [end === '/' ? '' : end]))
  return isAbove || steps.some((step) => isIn(step, folders) || PROCESS_PATH.test(step))
}

/** Folders whose paths depend on the reading process. */
const PROCESS_PATH = /^\/proc\/[^/]+\/(?:root|cwd|fd|task|map_files)(?:\/|$)|^\/dev\/fd(?:\/|$)/

/** Returns each step of the resolution of an absolute path, links followed. The last step is the result. */
function stepsOf(path: string, links: ReadonlyMap<string, string>): string[] {
  const steps = ['/']
  const names = path.split('/')
  for (let hops = 0; names.length > 0 && hops <= MOST_HOPS;) {
    const name = names.shift()!
    if (name === '' || name === '.') continue
    const at = steps.at(-1)!
    const next = name === '..' ? posix.dirname(at) : posix.join(at, name)
    const text = links.get(next)
    if (text === undefined) steps.push(next)
    else {
      hops += 1
      names.unshift(...text.split('/'))
      steps.push(text.startsWith('/') ? '/' : posix.dirname(next))
    }
  }
  return steps
}

function isIn(path: string, folders: readonly string[]): boolean {
  return folders.some((folder) => path === folder || path.startsWith(`${folder}/`))
}

/** Maximum number of links compared with a clean sandbox. A task has at most a few links to its own tests. */
const MOST_OWN = 100

/** Returns the links that a clean sandbox does not have. */
async function withoutOwn(links: ReadonlyMap<string, string>, clean: () => Promise<Workspace>): Promise<string[]> {
  const own = await linksOf(await clean(), [...links.keys()].slice(0, MOST_OWN))
  return [...links.keys()].filter((path) => own.get(path) !== links.get(path))
}

/** Removes links, also from folders that the agent made read-only. */
const REMOVE = String.raw`exec xargs -0 sh -c 'for l; do
  rm -f -- "$l" 2> /dev/null || { chmod u+wx -- "$(dirname -- "$l")" && rm -f -- "$l"; } || exit 255
done' sh`

async function remove(workspace: Workspace, paths: readonly string[]): Promise<void> {
  if (paths.length === 0) return
  const command = ['/bin/sh', '-c', REMOVE] as const
  const removed = await workspace.run({ command, cwd: '/', stdin: `${paths.join('\0')}\0`, timeoutMs: LIST_MS })
  if (removed.exitCode !== 0) throw crashed('Links cannot be removed', removed.stderr)
}

/** Runs a script that prints pairs of path and target, each terminated by a zero byte. */
async function list(workspace: Workspace, script: string, args: readonly string[]): Promise<Map<string, string>> {
  const listed = await workspace.run({
    command: ['/bin/sh', '-c', script, 'sh', ...args],
    cwd: '/',
    outputBytes: LIST_BYTES,
    timeoutMs: LIST_MS,
  })
  if (listed.exitCode !== 0 || listed.stdoutBytes > listed.stdout.length)
    throw crashed('Links cannot be listed', listed.stderr)
  const texts = listed.stdout.toString('utf8').split('\0')
  const links = new Map<string, string>()
  for (let index = 0; index + 1 < texts.length; index += 2) links.set(texts[index]!, texts[index + 1]!)
  return links
}

function crashed(what: string, stderr: Buffer): RolloutError {
  return new RolloutError('evaluator.crashed', `${what} in the grader's sandbox: ${tail(stderr, 500) || 'no message'}`)
}
