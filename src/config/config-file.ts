import { readFile } from 'node:fs/promises'
import { relative } from 'node:path'
import { isMap, isScalar, isSeq, LineCounter, parseDocument, type Document } from 'yaml'
import { isTree } from '../lib/fs/merge-trees.ts'
import { errnoOf } from '../lib/fs/errno.ts'
import { RolloutError } from '../model/failure.ts'

/** `polar.yaml` as it was read: what it says, and on which line. */
export interface ConfigFile {
  path: string
  /** How messages call it. */
  name: string
  tree: Readonly<Record<string, unknown>>
  /** Of the value at a path, or of the nearest thing around it. */
  lineOf(path: readonly PropertyKey[]): number
}

/** Undefined: there is none. Throws `config.invalid` with every place that is not YAML. */
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

function parseConfigFile(path: string, text: string, name: string): ConfigFile {
  const lines = new LineCounter()
  const document = parseDocument(text, { lineCounter: lines, prettyErrors: false })
  if (document.errors.length > 0) {
    const problems = document.errors.map(({ pos, message }) => `${name}:${lines.linePos(pos[0]).line}: ${message}`)
    throw new RolloutError('config.invalid', problems.join('\n'))
  }
  const value = toPlain(name, document)
  if (value != null && !isTree(value))
    throw new RolloutError('config.invalid', `${name}: must have sections such as "server:", and has none.`)
  return {
    path,
    name,
    tree: isTree(value) ? (withoutNulls(value) as Record<string, unknown>) : {},
    lineOf: (at) => lines.linePos(offsetOf(document, at)).line,
  }
}

function toPlain(name: string, document: Document): unknown {
  try {
    return document.toJS({ maxAliasCount: 100 }) as unknown
  } catch (error) {
    throw new RolloutError('config.invalid', `${name}: ${(error as Error).message}`, { cause: error })
  }
}

/** A key with nothing behind it says nothing: its lines may all be comments for now. */
function withoutNulls(value: unknown): unknown {
  if (!isTree(value)) return value
  const said = Object.entries(value).filter(([, inner]) => inner !== null)
  return Object.fromEntries(said.map(([key, inner]) => [key, withoutNulls(inner)]))
}

/** Where the key stands, or the item of a list; as far as the path can be followed. */
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
