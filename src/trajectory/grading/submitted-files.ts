import { mkdir, readFile, rm, writeFile } from 'node:fs/promises'
import { join, posix } from 'node:path'
import * as z from 'zod'
import { RolloutError } from '../../model/failure.ts'
import type { LeftOut, Workspace } from '../../model/workspace.ts'
import { matchesGlobs } from './globs.ts'
import { toPlainTree } from './plain-tree.ts'
import { PROTECTED_IN_FOLDER } from './protected-files.ts'
import { allow, walk } from './walk-tree.ts'

/** Includes compiled Python: Python loads it instead of the source if its header matches, which the agent can forge. */
const USUALLY_EXCLUDED = ['__pycache__', '*.pyc', '*.pyo', '.pytest_cache']

/** Settings of an evaluator that copies files from the agent's sandbox. */
export const fileSettings = {
  paths: z
    .array(z.string().min(1))
    .default(['.'])
    .describe(
      "Files and folders to copy from the agent's sandbox, absolute or relative to the workdir; absent: the workdir",
    ),
  exclude: z
    .array(z.string().min(1))
    .default(USUALLY_EXCLUDED)
    .describe("Globs of files whose version of the agent is ignored; absent: compiled Python and pytest's cache"),
  max_mb: z.number().positive().max(100_000).default(512).describe('Size limit of each path in megabytes'),
  max_files: z
    .int()
    .positive()
    .max(10_000_000)
    .default(50_000)
    .describe('Maximum number of files and folders of each path'),
}

/** Settings of an evaluator that runs tests over the agent's files. */
export const testedFileSettings = {
  ...fileSettings,
  protect_tests: z
    .boolean()
    .default(false)
    .describe(
      "Also ignore the agent's version of tests, test runners and their configuration: the default of protected in " +
        'test_on_output, package.json, node_modules, .venv, and the settings and hooks of git',
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

/** Returns the folder of a copied path within a submission. */
export function folderOf(submission: string, index: number): string {
  return join(submission, 'files', String(index))
}

/** Returns the name of a file for globs: its path relative to the workdir or the root. */
export function nameOf(path: string, below = ''): string {
  return posix.join(path, below).replace(/^\/+/, '')
}

/** Returns whether the agent's version of a file below one of the paths is ignored. */
export function excludedIn(selection: FileSelection, path: string): (below: string) => boolean {
  const isExcluded = matchesGlobs(selection.exclude)
  const isProtected = matchesGlobs(selection.protect_tests === true ? PROTECTED_IN_FOLDER : [])
  return (below) => isExcluded(nameOf(path, below)) || (below !== '' && isProtected(below))
}

/** File with the absolute source paths in the agent's sandbox, in the order of `paths`. */
const SOURCES = 'sources.json'

/**
 * Copies the paths from the agent's sandbox, without excluded files. Throws errors with blame `policy` if the agent caused the
 * failure. Copies links as links: callers must call `settleLinks` before they read or upload the copies.
 */
export async function collectFiles(agent: Workspace, submission: string, selection: FileSelection): Promise<void> {
  await mkdir(join(submission, 'files'))
  const sources = selection.paths.map((path) => insideOf(agent, path))
  await writeFile(join(submission, SOURCES), JSON.stringify(sources))
  for (const [index, path] of selection.paths.entries()) {
    const target = folderOf(submission, index)
    await copyPath(agent, insideOf(agent, path), target, toLimits(selection))
    await prune(target, excludedIn(selection, path))
  }
}

/** Makes unreadable folders of the agent readable: otherwise the agent could prevent its own grading. */
async function copyPath(
  agent: Workspace,
  path: string,
  target: string,
  limits: ReturnType<typeof toLimits>,
): Promise<void> {
  const options = { ...limits, links: 'keep' } as const
  try {
    await agent.download(path, target, options)
  } catch (error) {
    if (!(error instanceof RolloutError) || error.code !== 'runtime.copy-failed') throw error
    await agent.run({ command: ['chmod', '-R', 'u+rwX', '--', path], timeoutMs: 60_000 })
    await agent.download(path, target, options)
  }
}

/**
 * Replaces the links of one collected path by copies of their targets within that path. Returns the links without a copy.
 * `kept`: links of the task itself, which stay. A path that is itself a link stays a link.
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
    kept,
  })
  return leftOut.map(({ path: below, why }) => ({ path: posix.join(path, below), why }))
}

/** Maximum number of files that one report lists. */
const MOST_NAMES = 1000

/** Stores as evidence which files of the agent the grader does not have, and why. Writes nothing if it has all. */
export async function writeLeftOut(
  evidence: { write(name: string, data: string): Promise<void> },
  name: string,
  leftOut: readonly LeftOut[],
): Promise<void> {
  if (leftOut.length === 0) return
  const report = { count: leftOut.length, files: leftOut.slice(0, MOST_NAMES) }
  await evidence.write(name, `${JSON.stringify(report, undefined, 2)}\n`)
}

/** Returns the absolute path in a sandbox. Sandboxes may have different workdirs. */
export function insideOf(workspace: Workspace, path: string): string {
  return posix.resolve(workspace.workdir, path)
}

/**
 * Removes unwanted files of a copied tree without following links, and makes the other files readable for this process.
 */
export async function prune(root: string, isUnwanted: (below: string) => boolean): Promise<void> {
  for await (const { path, below, kind } of walk(root)) {
    // A link at the path of a folder with unwanted files would provide other files at their paths.
    const isUnwantedFolder = kind === 'link' && isUnwanted(`${below}/any`)
    if (below !== '' && (isUnwanted(below) || isUnwantedFolder)) await rm(path, { recursive: true, force: true })
    else if (kind === 'file') await allow(path, 0o400)
  }
}

/** Settings of an evaluator that reads files of the agent on this machine. */
export const ReadFileSettings = z.strictObject({
  ...fileSettings,
  include: z.array(z.string().min(1)).default(['**']).describe('Globs of the files to read'),
  max_mb: fileSettings.max_mb.default(16),
  max_files: fileSettings.max_files.default(2000),
})
export type ReadFileSettings = z.infer<typeof ReadFileSettings>

export interface SubmittedFile {
  /** Name for globs. */
  name: string
  data: Buffer
}

/** Copies files from the agent's sandbox for an evaluator that reads them on this machine. */
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

/** Yields the collected files, without links, sorted by name. */
export async function* readSubmitted(submission: string, settings: ReadFileSettings): AsyncGenerator<SubmittedFile> {
  const isIncluded = matchesGlobs(settings.include)
  for (const [index, root] of settings.paths.entries()) {
    for await (const { path, below, kind } of walk(folderOf(submission, index))) {
      const name = nameOf(root, below)
      if (kind === 'file' && isIncluded(name)) yield { name, data: await readFile(path) }
    }
  }
}
