import { randomBytes } from 'node:crypto'
import { constants } from 'node:fs'
import { copyFile, lstat, mkdir, readlink, rename, rm } from 'node:fs/promises'
import { posix } from 'node:path'
import { errnoOf } from '../../lib/fs/errno.ts'
import type { LeftOut } from '../../model/workspace.ts'
import { allow, walk, type FoundFile } from './walk-tree.ts'

export interface PlainTreeOptions {
  /** Absolute path of the tree in the sandbox that it was copied from. */
  source: string
  /** Limits of the whole tree, with the copies that take the place of links. */
  limits: { maxBytes: number; maxFiles: number }
  /** Links that stay: their targets by path below the root. Called once, and only for a tree that has links. */
  kept?(): Promise<ReadonlyMap<string, string>>
  /** Paths that no copy is made at. */
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

/** Kernel file systems: what a path in them names depends on the process that reads it. */
const KERNEL = /^\/(?:proc|sys|dev)(?:\/|$)/

/**
 * Replaces the links of a copied tree by copies, so that no path of the tree leads to another file, now or in a sandbox that
 * the tree is uploaded to. A symbolic link becomes a copy of the file or folder that it names in the same tree; a link that
 * names anything else is removed and reported. Every name of a file with several names becomes a file of its own. A root
 * that is a link stays as it is and is reported with an empty path. Nothing is followed: targets are looked up in the list
 * of the tree's own entries.
 */
export async function toPlainTree(root: string, options: PlainTreeOptions): Promise<LeftOut[]> {
  const tree = await loadTree(root)
  const links = [...tree.entries.values()].filter(({ kind }) => kind === 'link')
  const kept = links.length === 0 ? undefined : await options.kept?.()
  const isUnwanted = (below: string): boolean => options.isUnwanted?.(below) === true
  const copier: Copier = { tree, isUnwanted, leftOut: [], ...toBudget(tree, options.limits) }
  await separateNames(root, copier)
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
  /** Identity of a file that has several names in the tree. */
  inode?: number
  /** Text of a link; empty for other entries. */
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
      ...(kind === 'file' && nlink > 1 && { inode: ino }),
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

/** Gives each further name of a file a copy: writing to one name must not change what another name shows. */
async function separateNames(root: string, copier: Copier): Promise<void> {
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

/** The entry that a link names, or why it names none. */
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

/** The rest of an absolute path below the source; undefined outside of it. `..` stays for the caller to resolve. */
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
  // Also for what is left out: a folder of many links may be named by as many links.
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
