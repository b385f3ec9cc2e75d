import { isTree } from '../../../lib/fs/merge-trees.ts'

type Tree = { readonly [key: string]: unknown }

/** Renders JSON values except null as TOML: one line per value, one section per table. */
export function toToml(tree: Tree): string {
  return renderTable(tree, []).join('\n').concat('\n')
}

function renderTable(table: Tree, path: readonly string[]): string[] {
  const entries = Object.entries(table).filter(([, value]) => value !== undefined)
  const values = entries.filter(([, value]) => !isTree(value))
  const tables = entries.filter((entry): entry is [string, Tree] => isTree(entry[1]))
  const heading = path.length === 0 || (values.length === 0 && tables.length > 0) ? [] : ['', `[${renderPath(path)}]`]
  return [
    ...heading,
    ...values.map(([key, value]) => `${renderPath([key])} = ${renderValue(value)}`),
    ...tables.flatMap(([key, child]) => renderTable(child, [...path, key])),
  ]
}

function renderPath(path: readonly string[]): string {
  return path.map((key) => (/^[\w-]+$/.test(key) ? key : renderValue(key))).join('.')
}

/** Whether a value contains null at any depth. */
export function hasNull(value: unknown): boolean {
  return value === null || (typeof value === 'object' && Object.values(value).some(hasNull))
}

/** TOML uses the escapes of JSON, and also requires an escape for the delete character. */
function renderValue(value: unknown): string {
  if (Array.isArray(value)) return `[${value.map(renderValue).join(', ')}]`
  if (!isTree(value)) return JSON.stringify(value).replaceAll('\u007F', '\\u007f')
  const entries = Object.entries(value).map(([key, item]) => `${renderPath([key])} = ${renderValue(item)}`)
  return `{ ${entries.join(', ')} }`
}
