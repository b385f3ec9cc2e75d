import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join, posix } from 'node:path'
import * as z from 'zod'
import { RolloutError } from '../../model/failure.ts'
import type { LeftOut, Workspace } from '../../model/workspace.ts'
import { matchesGlobs } from './globs.ts'
import { toPlainTree } from './plain-tree.ts'
import { PROTECTED_IN_FOLDER } from './protected-files.ts'
import { allow, walk } from './walk-tree.ts'

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

/** Settings of an evaluator that runs tests over the agent's files. */
export const testedFileSettings = {
  ...fileSettings,
  protect_tests: z
    .boolean()
    .default(false)
    .describe(
      "Whether the agent's version of tests, of test runners and of what configures and builds them does not count either: the " +
        'default of protected in test_on_output, package.json, node_modules, .venv, and the settings and hooks of git',
    ),
}
export interface FileSelection {
  paths: readonly string[]
  exclude: readonly string[]
  protect_tests?: boolean
  max_mb: number
  max_files: number
}

export function toLimits({ max_mb: mb, max_files: maxFiles }: FileSelection): { maxBytes: number; maxFiles: number } {
  return { maxBytes: Math.floor(mb * 1024 * 1024), maxFiles }
}

/** Where the copy of a path lies within a submission. */
export function folderOf(submission: string, index: number): string {
  return join(submission, 'files', String(index))
}

/** What a file is called in globs: its path from the workdir on, or from the root. */
export function nameOf(path: string, below = ''): string {
  return posix.join(path, below).replace(/^\/+/, '')
}

/** Whether the agent's version of a file below one of the paths does not count. */
export function excludedIn(selection: FileSelection, path: string): (below: string) => boolean {
  const isExcluded = matchesGlobs(selection.exclude)
  const isProtected = matchesGlobs(selection.protect_tests === true ? PROTECTED_IN_FOLDER : [])
  return (below) => isExcluded(nameOf(path, below)) || (below !== '' && isProtected(below))
}

/** Absolute paths of the agent's sandbox that the files of a submission were copied from, in the order of `paths`. */
const SOURCES = 'sources.json'

/**
 * Takes the paths out of the agent's sandbox, without what is excluded. Throws what is the policy's doing. Links are copied as
 * links: a caller that reads or uploads the copies calls `settleLinks` first.
 */
export async function collectFiles(agent: Workspace, submission: string, selection: FileSelection): Promise<void> {
  await mkdir(join(submission, 'files'))
  const sources = selection.paths.map((path) => insideOf(agent, path))
  await writeFile(join(submission, SOURCES), JSON.stringify(sources))
  for (const [index, path] of selection.paths.entries()) {
    const place = folderOf(submission, index)
    await take(agent, insideOf(agent, path), place, toLimits(selection))
    await prune(place, excludedIn(selection, path))
  }
}

/** Folders that the agent locked are opened: a failure that it can bring about would let it choose when to be graded. */
async function take(agent: Workspace, path: string, place: string, limits: ReturnType<typeof toLimits>): Promise<void> {
  const options = { ...limits, links: 'keep' } as const
  try {
    await agent.download(path, place, options)
  } catch (error) {
    if (!(error instanceof RolloutError) || error.code !== 'runtime.copy-failed') throw error
    await agent.run({ command: ['chmod', '-R', 'u+rwX', '--', path], timeoutMs: 60_000 })
    await agent.download(path, place, options)
  }
}

/**
 * Replaces the links of one collected path by copies of what they name within that path, and says which have no copy.
 * `kept`: links of the task itself, which stay. A path that is itself a link stays one.
 */
export async function settleLinks(
  submission: string,
  index: number,
  { selection, kept }: { selection: FileSelection; kept?: () => Promise<ReadonlyMap<string, string>> },
): Promise<LeftOut[]> {
  const sources = JSON.parse(await readFile(join(submission, SOURCES), 'utf8')) as string[]
  const path = selection.paths[index]!
  const leftOut = await toPlainTree(folderOf(submission, index), {
    source: sources[index]!,
    limits: toLimits(selection),
    isUnwanted: excludedIn(selection, path),
    ...(kept !== undefined && { kept }),
  })
  return leftOut.map(({ path: below, why }) => ({ path: posix.join(path, below), why }))
}

/** Most files that one report names. */
const MOST_NAMES = 1000

/** Keeps with the session which of the agent's files the grader does not have, and why; nothing where it has them all. */
export async function writeLeftOut(
  evidence: { write(name: string, data: string): Promise<void> },
  name: string,
  leftOut: readonly LeftOut[],
): Promise<void> {
  if (leftOut.length === 0) return
  const report = { count: leftOut.length, files: leftOut.slice(0, MOST_NAMES) }
  await evidence.write(name, `${JSON.stringify(report, undefined, 2)}\n`)
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

/** Takes files out of the agent's sandbox for an evaluator that reads them itself. */
export async function collectReadable(
  agent: Workspace,
  { submission, evidence }: { submission: string; evidence: { write(name: string, data: string): Promise<void> } },
  settings: ReadFileSettings,
): Promise<void> {
  await collectFiles(agent, submission, settings)
  const leftOut: LeftOut[] = []
  for (const index of settings.paths.keys()) {
    leftOut.push(...(await settleLinks(submission, index, { selection: settings })))
  }
  await writeLeftOut(evidence, 'left-out.json', leftOut)
}

/** The files among what was collected, no links, in the order of their names. */
export async function* readSubmitted(submission: string, settings: ReadFileSettings): AsyncGenerator<SubmittedFile> {
  const isIncluded = matchesGlobs(settings.include)
  for (const [index, root] of settings.paths.entries()) {
    for await (const { path, below, kind } of walk(folderOf(submission, index))) {
      const name = nameOf(root, below)
      if (kind === 'file' && isIncluded(name)) yield { name, data: await readFile(path) }
    }
  }
}
