import { posix } from 'node:path'
import { createPolicy, foldersOf, mergePackageJson, type Change, type DropReason, type Rules } from './change-policy.ts'

/** A file whose change is not graded, or only in part. */
export interface DroppedFile {
  path: string
  why: DropReason
}

/** Access to the objects of the agent's repository. */
export interface ChangeStore {
  /** Absolute path of the repository in the sandbox. */
  repo: string
  /** Returns contents by object name, without unreadable objects. */
  readBlobs(names: readonly string[]): Promise<ReadonlyMap<string, Buffer>>
  /** Stores a file and returns its object name; undefined if that fails. */
  writeBlob(text: string): Promise<string | undefined>
  /** Returns every file of the agent's tree. */
  listAgentFiles(): Promise<ReadonlyMap<string, { mode: string; blob: string }>>
}

export interface ChosenChanges {
  taken: Change[]
  dropped: DroppedFile[]
  /** Files of `taken` in which the runner settings of the repository replace the agent's. */
  merged: string[]
}

const LINK = '120000'
/** Maximum size of a package.json. */
const PACKAGE_BYTES = 4 * 1024 * 1024

/** Divides an agent's changes into those that are graded and those that are not, with the reason. */
export async function chooseChanges(
  changes: readonly Change[],
  rules: Rules,
  store: ChangeStore,
): Promise<ChosenChanges> {
  const decide = createPolicy(rules)
  const chosen: ChosenChanges = { taken: [], dropped: [], merged: [] }
  const resolve = await createLinkResolver(changes, store)
  for (const change of changes) {
    const { path } = change
    const decision = decide(change)
    if (decision.kind === 'drop') {
      chosen.dropped.push({ path, why: decision.why })
      continue
    }
    const plain = isLink(change) ? resolve(change) : change
    if (plain === undefined) {
      chosen.dropped.push({ path, why: 'link' })
      continue
    }
    const graded = decision.kind === 'take' ? { change: plain, isMerged: false } : await mergePackage(plain, store)
    if (graded === undefined) chosen.dropped.push({ path, why: 'protected' })
    else chosen.taken.push(graded.change)
    if (graded?.isMerged === true) chosen.merged.push(path)
  }
  return keepFolders(chosen, rules.basePaths)
}

function isLink({ mode, status }: Change): boolean {
  return mode === LINK && status !== 'D'
}

/**
 * Replaces a link of the agent by the file of the agent's tree that it names. A link in the grader's repository could expose
 * files that are added later, such as hidden tests. Undefined for a link to anything but a plain file of the same tree.
 */
async function createLinkResolver(
  changes: readonly Change[],
  store: ChangeStore,
): Promise<(link: Change) => Change | undefined> {
  const links = changes.filter(isLink)
  if (links.length === 0) return () => undefined
  const texts = await store.readBlobs(links.map(({ blob }) => blob))
  const files = await store.listAgentFiles()
  return (link) => {
    const text = texts.get(link.blob)?.toString('utf8')
    const target = text === undefined ? undefined : toTreePath(link.path, text, store.repo)
    const file = target === undefined ? undefined : files.get(target)
    if (file === undefined || !file.mode.startsWith('100')) return undefined
    return { ...link, mode: file.mode, blob: file.blob }
  }
}

function toTreePath(path: string, text: string, repo: string): string | undefined {
  const absolute = posix.resolve(repo, posix.dirname(path), text)
  const below = posix.relative(repo, absolute)
  return below === '' || below === '..' || below.startsWith('../') ? undefined : below
}

/** Returns the agent's package.json with the repository's runner settings; undefined if it cannot be merged. */
async function mergePackage(
  change: Change,
  store: ChangeStore,
): Promise<{ change: Change; isMerged: boolean } | undefined> {
  if (change.status === 'D' || !change.mode.startsWith('100')) return undefined
  const isNew = !change.oldMode.startsWith('100')
  const blobs = await store.readBlobs(isNew ? [change.blob] : [change.blob, change.oldBlob])
  const [agents, base] = [blobs.get(change.blob), isNew ? Buffer.from('{}') : blobs.get(change.oldBlob)]
  if (agents === undefined || base === undefined || agents.length > PACKAGE_BYTES) return undefined
  const text = agents.toString('utf8')
  const merged = mergePackageJson(base.toString('utf8'), text)
  const blob = merged === undefined ? undefined : await store.writeBlob(merged)
  if (merged === undefined || blob === undefined) return undefined
  return { change: { ...change, blob }, isMerged: toCompact(merged) !== toCompact(text) }
}

function toCompact(json: string): string {
  return JSON.stringify(JSON.parse(json))
}

/** Drops a file that replaces a folder: it would remove files of that folder that must stay. */
function keepFolders(chosen: ChosenChanges, basePaths: ReadonlySet<string>): ChosenChanges {
  const deleted = new Set(chosen.taken.filter(({ status }) => status === 'D').map(({ path }) => path))
  const kept = new Set([...basePaths].filter((path) => !deleted.has(path)).flatMap(foldersOf))
  const replacesFolder = ({ path, status }: Change): boolean => status !== 'D' && kept.has(path)
  const replacing = chosen.taken.filter(replacesFolder).map(({ path }): DroppedFile => ({ path, why: 'protected' }))
  return {
    taken: chosen.taken.filter((change) => !replacesFolder(change)),
    dropped: [...chosen.dropped, ...replacing],
    merged: chosen.merged.filter((path) => !kept.has(path)),
  }
}

/**
 * Parses the output of `git diff-tree -r -z --no-abbrev`: `:oldmode newmode oldblob newblob status NUL path NUL`,
 * repeated.
 */
export function parseChanges(output: Buffer): Change[] {
  const parts = output.toString('utf8').split('\0')
  const changes: Change[] = []
  for (let index = 0; index + 1 < parts.length; index += 2) {
    const [oldMode = '', mode = '', oldBlob = '', blob = '', status = ''] = parts[index]!.slice(1).split(' ')
    changes.push({ path: parts[index + 1]!, mode, blob, oldMode, oldBlob, status: status as Change['status'] })
  }
  return changes
}

/** Parses the output of `git ls-files -s -z`: `mode blob stage TAB path NUL`, repeated. */
export function parseIndex(output: Buffer): Map<string, { mode: string; blob: string }> {
  const files = new Map<string, { mode: string; blob: string }>()
  for (const line of output.toString('utf8').split('\0')) {
    const tab = line.indexOf('\t')
    const [mode = '', blob = ''] = line.slice(0, Math.max(0, tab)).split(' ')
    if (tab !== -1) files.set(line.slice(tab + 1), { mode, blob })
  }
  return files
}

/**
 * Parses the output of `git cat-file --batch`: `name type size LF content LF`, repeated. Ignores an incomplete last
 * object.
 */
export function parseBlobs(output: Buffer): Map<string, Buffer> {
  const blobs = new Map<string, Buffer>()
  for (let at = 0; at < output.length;) {
    const end = output.indexOf(10, at)
    if (end === -1) break
    const [name = '', type = '', size = ''] = output.toString('latin1', at, end).split(' ')
    at = end + 1
    if (type !== 'blob') continue
    const length = Number(size)
    if (at + length >= output.length) break
    blobs.set(name, output.subarray(at, at + length))
    at += length + 1
  }
  return blobs
}

const REASONS: Readonly<Record<DropReason | 'merged', string>> = {
  excluded: 'Matches a pattern of files that are no part of a change.',
  protected:
    'Decides which tests run, what they check or how they are reported: the version of the repository was graded. To grade the version of the agent, add the file to "editable".',
  test: 'Holds the tests that are graded: the version of the grader was used.',
  shadow: 'Would be loaded in place of a module of the test runner or of the standard library.',
  submodule: 'Is a repository within the repository.',
  environment: 'Belongs to the image, not to the commit that changes are compared with.',
  name: 'Has a name that is not UTF-8.',
  link: 'Is a symbolic link to something other than a plain file of the same repository.',
  merged: 'Keys that configure test runners are those of the repository; the rest is the version of the agent.',
}

/** Stores as evidence which changes of the agent were not graded unchanged, and why. */
export async function writeDropped(
  evidence: { write(name: string, data: string): Promise<void> },
  { dropped, merged }: Pick<ChosenChanges, 'dropped' | 'merged'>,
): Promise<void> {
  const all = [...dropped, ...merged.map((path) => ({ path, why: 'merged' as const }))]
  if (all.length === 0) return
  const files = all.slice(0, MOST_NAMES).map(({ path, why }) => ({ path, why, reason: REASONS[why] }))
  await evidence.write('dropped-files.json', `${JSON.stringify({ count: all.length, files }, undefined, 2)}\n`)
}

/** Maximum number of files that one report lists. */
const MOST_NAMES = 1000
