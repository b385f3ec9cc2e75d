import { randomBytes } from 'node:crypto'
import { constants } from 'node:fs'
import { copyFile, lstat, mkdir, readlink, rename, rm } from 'node:fs/promises'
import { posix } from 'node:path'
import { errnoOf } from '../../lib/fs/errno.ts'
import type { LeftOut } from '../../model/workspace.ts'
import { allow, walk, type FoundFile } from './walk-tree.ts'

export interface PlainTreeOptions {
  /** Absolute path of the tree in its sandbox. */
  source: string
  /** Limits of the whole tree, including the copies that replace links. */
  limits: { maxBytes: number; maxFiles: number }
  /** Returns the links to keep: their targets by path below the root. Called once, and only if the tree has links. */
  kept?(): Promise<ReadonlyMap<string, string>>
  /** Whether to skip the copy at this path. */
  isUnwanted?(below: string): boolean
}

const WHY = {
  outside: 'the link points outside of the copied folder',
  dangling: 'the link points to nothing',
  loop: 'the link points to a folder that contains it',
  chain: 'the link leads through another link',
  inner: 'the link lies in a folder that another link points to',
  limit: 'the copy of the link exceeds the limits',
} as const

/** Kernel file systems: the meaning of their paths depends on the reading process. */
const KERNEL = /^\/(?:proc|sys|dev)(?:\/|$)/

/**
 * Replaces the links of a copied tree by copies, so that no path of the tree leads to another file, now or after an upload to
 * a sandbox. A symbolic link becomes a copy of the file or folder of the same tree that it names; any other link is removed
 * and reported. Each further hard link becomes a separate file. A root that is a link stays and is reported with an empty
 * path. Follows no link: targets are looked up in the list of the tree's entries.
 */
export async function toPlainTree(root: string, options: PlainTreeOptions): Promise<LeftOut[]> {
  const tree = await loadTree(root)
  const links = [...tree.entries.values()].filter(({ kind }) => kind === 'link')
  const kept = links.length === 0 ? undefined : await options.kept?.()
  const isUnwanted = (below: string): boolean => options.isUnwanted?.(below) === true
  const copier: Copier = { tree, isUnwanted, leftOut: [], ...toBudget(tree, options.limits) }
  await separateHardLinks(root, copier)
  for (const link of links) {
    if (kept?.get(link.below) === link.target) continue
    const found = findTarget(tree, link, options.source)
    if (link.below !== '') await rm(link.path)
    if (typeof found === 'string') copier.leftOut.push({ path: link.below, why: found })
    else await copyEntry(copier, found, link.path, link.below)
  }
  return copier.leftOut
}

interface Entry extends FoundFile {
  bytes: number
  /** Inode of a file with several hard links. */
  inode?: number
  /** Target of a link; empty for other entries. */
  target: string
}

interface Tree {
  entries: ReadonlyMap<string, Entry>
  children: ReadonlyMap<string, readonly string[]>
}

async function loadTree(root: string): Promise<Tree> {
  const entries = new Map<string, Entry>()
  const children = new Map<string, string[]>()
  for await (const found of walk(root)) {
    const { path, below, kind } = found
    if (kind === 'file') await allow(path, 0o400)
    const { size, nlink, ino } = await lstat(path)
    entries.set(below, {
      ...found,
      bytes: kind === 'file' ? size : 0,
      inode: kind === 'file' && nlink > 1 ? ino : undefined,
      target: kind === 'link' ? await readlink(path) : '',
    })
    if (below === '') continue
    const parent = parentOf(below)
    const siblings = children.get(parent)
    if (siblings === undefined) children.set(parent, [below])
    else siblings.push(below)
  }
  return { entries, children }
}

interface Copier {
  tree: Tree
  isUnwanted(below: string): boolean
  leftOut: LeftOut[]
  bytesLeft: number
  filesLeft: number
}

function toBudget({ entries }: Tree, limits: PlainTreeOptions['limits']): Pick<Copier, 'bytesLeft' | 'filesLeft'> {
  const inodes = new Set<number>()
  let bytes = 0
  for (const entry of entries.values()) {
    if (entry.inode !== undefined && inodes.has(entry.inode)) continue
    if (entry.inode !== undefined) inodes.add(entry.inode)
    bytes += entry.bytes
  }
  return { bytesLeft: limits.maxBytes - bytes, filesLeft: limits.maxFiles - entries.size }
}

/** Copies each further hard link: a write to one path must not change another path. */
async function separateHardLinks(root: string, copier: Copier): Promise<void> {
  const seen = new Set<number>()
  for (const { path, below, bytes, inode } of copier.tree.entries.values()) {
    if (inode === undefined) continue
    if (!seen.has(inode)) {
      seen.add(inode)
      continue
    }
    if (bytes > copier.bytesLeft) {
      await rm(path)
      copier.leftOut.push({ path: below, why: WHY.limit })
      continue
    }
    copier.bytesLeft -= bytes
    const copy = `${root}-${randomBytes(8).toString('hex')}`
    await copyFile(path, copy, constants.COPYFILE_EXCL)
    await rename(copy, path)
  }
}

/** Returns the entry that a link names, or why it names none. */
function findTarget({ entries }: Tree, { below, target }: Entry, source: string): Entry | string {
  if (below === '') return WHY.outside
  const start = target.startsWith('/') ? pathBelow(source, target) : joinBelow(parentOf(below), target)
  if (start === undefined) return WHY.outside
  let at = ''
  const names = start.split('/').filter((name) => name !== '' && name !== '.')
  for (const [index, name] of names.entries()) {
    if (name === '..') {
      if (at === '') return WHY.outside
      at = parentOf(at)
      continue
    }
    at = at === '' ? name : `${at}/${name}`
    const entry = entries.get(at)
    if (entry === undefined) return WHY.dangling
    if (entry.kind === 'link') return at === below ? WHY.loop : WHY.chain
    if (entry.kind === 'file' && index < names.length - 1) return WHY.dangling
  }
  if (at === '' || below.startsWith(`${at}/`)) return WHY.loop
  return entries.get(at)!
}

/** Returns an absolute path relative to the source; undefined outside of it. Does not resolve `..`. */
function pathBelow(source: string, target: string): string | undefined {
  if (KERNEL.test(posix.normalize(target))) return undefined
  const folder = source.endsWith('/') ? source : `${source}/`
  return target.startsWith(folder) ? target.slice(folder.length) : undefined
}

function joinBelow(folder: string, target: string): string {
  return folder === '' ? target : `${folder}/${target}`
}

async function copyEntry(copier: Copier, from: Entry, path: string, below: string): Promise<void> {
  const leaveOut = (why: string) => void copier.leftOut.push({ path: below, why })
  if (copier.isUnwanted(below)) return
  if (copier.filesLeft < 1 || from.bytes > copier.bytesLeft) return leaveOut(WHY.limit)
  // Skipped entries count too: many links may point to a folder of many links.
  copier.filesLeft -= 1
  if (from.kind === 'link') return leaveOut(WHY.inner)
  copier.bytesLeft -= from.bytes
  try {
    if (from.kind === 'file') return await copyFile(from.path, path, constants.COPYFILE_EXCL)
    await mkdir(path)
  } catch (error) {
    if (errnoOf(error) === 'ENAMETOOLONG') return leaveOut(WHY.limit)
    throw error
  }
  for (const child of copier.tree.children.get(from.below) ?? []) {
    const name = child.slice(from.below.length + 1)
    await copyEntry(copier, copier.tree.entries.get(child)!, `${path}/${name}`, `${below}/${name}`)
  }
}

function parentOf(below: string): string {
  return below.slice(0, Math.max(0, below.lastIndexOf('/')))
}
