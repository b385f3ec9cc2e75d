import { readFile } from 'node:fs/promises'
import { relative } from 'node:path'
import { isMap, isScalar, isSeq, LineCounter, parseDocument, type Document } from 'yaml'
import { isTree } from '../lib/fs/merge-trees.ts'
import { errnoOf } from '../lib/fs/errno.ts'
import { RolloutError } from '../model/failure.ts'
import { orInvalid } from './or-invalid.ts'

/** A parsed config file, with the line of each value. */
export interface ConfigFile {
  path: string
  /** Name for messages: the path, relative if the file is below the working directory. */
  name: string
  tree: Readonly<Record<string, unknown>>
  /** Returns the line of the value at a path, or of its nearest parent that exists. */
  lineOf(path: readonly PropertyKey[]): number
}

/** Undefined if the file does not exist. Throws `config.invalid` with all syntax errors. */
export async function loadConfigFile(path: string, cwd: string): Promise<ConfigFile | undefined> {
  let text: string
  try {
    text = await readFile(path, 'utf8')
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined
    throw new RolloutError('config.invalid', `${path} cannot be read: ${(error as Error).message}`, { cause: error })
  }
  const near = relative(cwd, path)
  return parseConfigFile(path, text, near.startsWith('..') ? path : near)
}

async function parseConfigFile(path: string, text: string, name: string): Promise<ConfigFile> {
  const lines = new LineCounter()
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false })
  if (document.errors.length > 0) {
    const problems = document.errors.map(({ pos, message }) => `${name}:${lines.linePos(pos[0]).line}: ${message}`)
    throw new RolloutError('config.invalid', problems.join('\n'))
  }
  const value = await orInvalid(name, () => document.toJS({ maxAliasCount: 100 }) as unknown)
  if (value != null && !isTree(value))
    throw new RolloutError('config.invalid', `${name}: must have sections such as "server:", but has none.`)
  return {
    path,
    name,
    tree: isTree(value) ? (withoutNulls(value) as Record<string, unknown>) : {},
    lineOf: (at) => lines.linePos(offsetOf(document, at)).line,
  }
}

/** Drops keys without a value, such as a section whose lines are all commented out. */
function withoutNulls(value: unknown): unknown {
  if (!isTree(value)) return value
  const set = Object.entries(value).filter(([, inner]) => inner !== null)
  return Object.fromEntries(set.map(([key, inner]) => [key, withoutNulls(inner)]))
}

/** Returns the offset of a key or list item, or of its nearest parent that exists. */
function offsetOf(document: Document, path: readonly PropertyKey[]): number {
  let node: unknown = document.contents
  let offset = document.contents?.range?.[0] ?? 0
  for (const key of path) {
    if (isMap(node)) {
      const pair = node.items.find((item) => isScalar(item.key) && String(item.key.value) === String(key))
      if (pair === undefined) return offset
      offset = isScalar(pair.key) ? (pair.key.range?.[0] ?? offset) : offset
      node = pair.value
    } else if (isSeq(node)) {
      node = node.items[Number(key)]
      offset = (node as { range?: [number, number, number] | null } | undefined)?.range?.[0] ?? offset
    } else {
      return offset
    }
  }
  return offset
}
