import { randomBytes } from 'node:crypto'
import { cp, lstat, mkdir, rename, rm } from 'node:fs/promises'
import { dirname, join, posix } from 'node:path'
import { loadProgram } from '../../lib/process/load-program.ts'
import { RolloutError } from '../../model/failure.ts'
import type { LeftOut, Workspace } from '../../model/workspace.ts'
import { tail } from './run-grading.ts'
import { linksIn } from './sandbox-links.ts'
import { excludedIn, insideOf, folderOf, prune, settleLinks, toLimits, type FileSelection } from './submitted-files.ts'
import { walk } from './walk-tree.ts'

/** Maximum size of the list of the grader's own files. */
const LIST_BYTES = 64 * 1024 * 1024

/**
 * Copies the collected files to their paths in a sandbox in which no code of the agent has run. A restored folder contains
 * exactly the agent's files, except that the sandbox keeps its own version of excluded files. Links of the agent are not
 * copied: a link in the grader's sandbox could expose files that are added later. Links that the sandbox itself has, with the
 * same target at the same path, stay. Returns the missing files with the reason.
 */
export async function restoreFiles(
  grader: Workspace,
  submission: string,
  selection: FileSelection,
): Promise<LeftOut[]> {
  const leftOut: LeftOut[] = []
  for (const [index, path] of selection.paths.entries()) {
    const collected = folderOf(submission, index)
    const target = insideOf(grader, path)
    const missing = await settleLinks(submission, index, { selection, kept: () => linksIn(grader, target) })
    leftOut.push(...missing)
    const stats = await lstat(collected)
    if (stats.isSymbolicLink()) {
      if (missing.length > 0) await removeIn(grader, target)
      continue
    }
    if (!stats.isDirectory()) {
      if (!excludedIn(selection, path)('')) await grader.upload(collected, target)
      continue
    }
    const own = await ownFiles(grader, target, path, selection)
    if (own.size === 0) {
      await replaceFolder(grader, collected, target)
      continue
    }
    const scratch = join(submission, `merged-${randomBytes(8).toString('hex')}`)
    try {
      await mkdir(scratch)
      await grader.download(target, join(scratch, 'own'), { ...toLimits(selection), links: 'keep' })
      await cp(collected, join(scratch, 'merged'), {
        recursive: true,
        verbatimSymlinks: true,
        preserveTimestamps: true,
      })
      await putBack(join(scratch, 'own'), join(scratch, 'merged'), own)
      await replaceFolder(grader, join(scratch, 'merged'), target)
    } finally {
      await rm(scratch, { recursive: true, force: true })
    }
  }
  return leftOut
}

async function removeIn(grader: Workspace, path: string): Promise<void> {
  const removed = await grader.run({ command: ['rm', '-rf', '--', path], cwd: '/', timeoutMs: 120_000 })
  if (removed.exitCode !== 0) throw crashed(`${path} cannot be removed in the grader's sandbox`, removed.stderr)
}

/** Returns the excluded files of the grader's folder, which stay, by their path below the folder. */
async function ownFiles(
  grader: Workspace,
  target: string,
  path: string,
  selection: FileSelection,
): Promise<Set<string>> {
  if (selection.exclude.length === 0 && selection.protect_tests !== true) return new Set()
  const script = 'if [ -d "$1" ]; then cd -- "$1" && exec find . ! -type d -print0; fi'
  const listed = await grader.run({
    command: ['/bin/sh', '-c', script, 'sh', target],
    cwd: '/',
    outputBytes: LIST_BYTES,
    timeoutMs: 120_000,
  })
  if (listed.exitCode !== 0 || listed.stdoutBytes > listed.stdout.length) {
    throw crashed(`The files of ${target} cannot be listed in the grader's sandbox`, listed.stderr)
  }
  const isExcluded = excludedIn(selection, path)
  const names = listed.stdout.toString('utf8').split('\0')
  return new Set(names.map((name) => name.slice(2)).filter((name) => name !== '' && isExcluded(name)))
}

/** Moves files into another tree and replaces what exists there. */
async function putBack(own: string, merged: string, names: ReadonlySet<string>): Promise<void> {
  await prune(own, () => false)
  const found: string[] = []
  for await (const { below, kind } of walk(own)) if (kind !== 'directory' && names.has(below)) found.push(below)
  for (const below of found) {
    await makeParents(merged, below)
    await rm(join(merged, below), { recursive: true, force: true })
    await rename(join(own, below), join(merged, below))
  }
}

/** Creates real folders and replaces links of the agent at their paths. */
async function makeParents(root: string, below: string): Promise<void> {
  const names = dirname(below).split('/')
  for (let depth = 1; depth <= names.length; depth++) {
    const path = join(root, ...names.slice(0, depth))
    const stats = await lstat(path).catch(() => undefined)
    if (stats?.isDirectory()) continue
    if (stats !== undefined) await rm(path)
    await mkdir(path)
  }
}

const replaceEntries = loadProgram(new URL('./replace-folder.sh', import.meta.url))

/** Replaces the contents of a folder. Keeps the folder itself, because it may be a mount, which cannot be removed. */
export async function replaceFolder(workspace: Workspace, source: string, target: string): Promise<void> {
  const staging = `.polar-${randomBytes(8).toString('hex')}`
  await workspace.upload(source, posix.join(target, staging))
  const moved = await workspace.run({
    command: ['/bin/sh', '-c', replaceEntries(), 'sh', target, staging],
    cwd: '/',
    timeoutMs: 120_000,
  })
  if (moved.exitCode !== 0) throw crashed(`${target} cannot be filled in the grader's sandbox`, moved.stderr)
}

/** Removes links of the agent among the parent folders of `target`. */
export async function clearLinks(workspace: Workspace, target: string): Promise<void> {
  const folders: string[] = []
  for (let folder = posix.dirname(target); folder.startsWith(`${workspace.workdir}/`); folder = posix.dirname(folder)) {
    folders.unshift(folder)
  }
  if (folders.length === 0) return
  const script = 'for p; do if [ -L "$p" ]; then rm -f -- "$p" || exit 1; fi; done'
  const cleared = await workspace.run({ command: ['/bin/sh', '-c', script, 'sh', ...folders], timeoutMs: 30_000 })
  if (cleared.exitCode !== 0) throw crashed(`Links on the way to ${target} cannot be removed`, cleared.stderr)
}

function crashed(what: string, stderr: Buffer): RolloutError {
  return new RolloutError('evaluator.crashed', `${what}: ${tail(stderr, 500) || 'no message'}`)
}
