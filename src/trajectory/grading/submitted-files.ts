import { chmod, lstat, mkdir, readdir, readFile, rm } from 'node:fs/promises'
import { join, posix } from 'node:path'
import * as z from 'zod'
import { errnoOf } from '../../lib/errno.ts'
import { RolloutError } from '../../model/failure.ts'
import type { Workspace } from '../../model/workspace.ts'
import { matchesGlobs } from './globs.ts'

/**
 * Compiled Python beside a source takes its place where the two seem to belong together, which whoever writes the compiled
 * file decides.
 */
const USUALLY_EXCLUDED = ['__pycache__', '*.pyc', '*.pyo', '.pytest_cache']

/** Settings of an evaluator that takes files out of the agent's sandbox. */
export const fileSettings = {
  paths: z
    .array(z.string().min(1))
    .default(['.'])
    .describe('Files and folders taken from the agent, absolute or relative to the workdir; absent: the workdir'),
  exclude: z
    .array(z.string().min(1))
    .default(USUALLY_EXCLUDED)
    .describe("Globs of files whose agent's version does not count; absent: compiled Python and the cache of pytest"),
  max_mb: z.number().positive().max(100_000).default(512).describe('Most that is taken of each path, in megabytes'),
  max_files: z.int().positive().max(10_000_000).default(50_000).describe('Most files and folders of each path'),
}
export interface FileSelection {
  paths: readonly string[]
  exclude: readonly string[]
  max_mb: number
  max_files: number
}

export function toLimits({ max_mb: mb, max_files: maxFiles }: FileSelection): { maxBytes: number; maxFiles: number } {
  return { maxBytes: Math.floor(mb * 1024 * 1024), maxFiles }
}

/** Where the copy of a path lies within a submission. */
export function placeOf(submission: string, index: number): string {
  return join(submission, 'files', String(index))
}

/** What a file is called in globs: its path from the workdir on, or from the root. */
export function nameOf(path: string, below = ''): string {
  return posix.join(path, below).replace(/^\/+/, '')
}

/** Takes the paths out of the agent's sandbox, without what is excluded. Throws what is the policy's doing. */
export async function collectFiles(agent: Workspace, submission: string, selection: FileSelection): Promise<void> {
  await mkdir(join(submission, 'files'))
  const isExcluded = matchesGlobs(selection.exclude)
  for (const [index, path] of selection.paths.entries()) {
    const place = placeOf(submission, index)
    await take(agent, insideOf(agent, path), place, toLimits(selection))
    await prune(place, (below) => isExcluded(nameOf(path, below)))
  }
}

/** Folders that the agent locked are opened: a failure that it can bring about would let it choose when to be graded. */
async function take(agent: Workspace, path: string, place: string, limits: ReturnType<typeof toLimits>): Promise<void> {
  try {
    await agent.download(path, place, limits)
  } catch (error) {
    if (!(error instanceof RolloutError) || error.code !== 'runtime.copy-failed') throw error
    await agent.run({ command: ['chmod', '-R', 'u+rwX', '--', path], timeoutMs: 60_000 })
    await agent.download(path, place, limits)
  }
}

/** As a path of the sandbox: the same relative one may be elsewhere in another. */
export function insideOf(workspace: Workspace, path: string): string {
  return posix.resolve(workspace.workdir, path)
}

/**
 * Removes what is not wanted of a copied tree, following no link; makes what stays readable for us, whatever mode it was
 * given.
 */
export async function prune(root: string, isUnwanted: (below: string) => boolean): Promise<void> {
  for await (const { path, below, kind } of walk(root)) {
    // A link in the place of a folder whose files are unwanted would bring others under their names.
    const isInTheWay = kind === 'link' && isUnwanted(`${below}/any`)
    if (below !== '' && (isUnwanted(below) || isInTheWay)) await rm(path, { recursive: true, force: true })
    else if (kind === 'file') await allow(path, 0o400)
  }
}

export interface Found {
  path: string
  /** From the root on; empty for the root itself. */
  below: string
  kind: 'file' | 'directory' | 'link'
}

/** Everything in a copied tree in the order of its names; a folder before what is in it, and not entered once removed. */
export async function* walk(path: string, below = ''): AsyncGenerator<Found> {
  const stats = await lstat(path)
  if (!stats.isDirectory()) {
    yield { path, below, kind: stats.isSymbolicLink() ? 'link' : 'file' }
    return
  }
  await allow(path, 0o700)
  yield { path, below, kind: 'directory' }
  for (const name of (await namesIn(path)).toSorted())
    yield* walk(join(path, name), below === '' ? name : `${below}/${name}`)
}

/** None where the folder was removed meanwhile. */
async function namesIn(folder: string): Promise<string[]> {
  try {
    return await readdir(folder)
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return []
    throw error
  }
}

async function allow(path: string, bits: number): Promise<void> {
  const { mode } = await lstat(path)
  if ((mode & bits) !== bits) await chmod(path, (mode & 0o777) | bits)
}

/** Settings of an evaluator that reads files of the agent's itself, rather than have a sandbox read them. */
export const ReadFileSettings = z.strictObject({
  ...fileSettings,
  include: z.array(z.string().min(1)).default(['**']).describe('Globs of those that are read'),
  max_mb: fileSettings.max_mb.default(16),
  max_files: fileSettings.max_files.default(2000),
})
export type ReadFileSettings = z.infer<typeof ReadFileSettings>

export interface SubmittedFile {
  /** As globs see it. */
  name: string
  data: Buffer
}

/** The files among what was collected, no links, in the order of their names. */
export async function* readSubmitted(submission: string, settings: ReadFileSettings): AsyncGenerator<SubmittedFile> {
  const isIncluded = matchesGlobs(settings.include)
  for (const [index, root] of settings.paths.entries()) {
    for await (const { path, below, kind } of walk(placeOf(submission, index))) {
      const name = nameOf(root, below)
      if (kind === 'file' && isIncluded(name)) yield { name, data: await readFile(path) }
    }
  }
}
