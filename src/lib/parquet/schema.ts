import type { ThriftValue } from './thrift.ts'

export type Primitive = 'string' | 'boolean' | 'int32' | 'uint8' | 'int64' | 'float' | 'double'

/** Any value may be null, at every depth. */
export type ParquetType = Primitive | { list: ParquetType } | { struct: ParquetColumns }
export type ParquetColumns = { readonly [name: string]: ParquetType }

/** A stored column: the path to one primitive. */
export interface Leaf {
  type: Primitive
  /** Names from the root, including those of list wrappers. */
  path: readonly string[]
  steps: readonly Step[]
}

/** `field`: read a field of a struct. `list`: read each element. */
export type Step = { field: string } | 'list'

export function leavesOf(columns: ParquetColumns): Leaf[] {
  return Object.entries(columns).flatMap(([name, type]) => leavesBelow(type, [name], [{ field: name }]))
}

function leavesBelow(type: ParquetType, path: readonly string[], steps: readonly Step[]): Leaf[] {
  if (typeof type === 'string') return [{ type, path, steps }]
  if ('list' in type) return leavesBelow(type.list, [...path, 'list', 'element'], [...steps, 'list'])
  return Object.entries(type.struct).flatMap(([name, inner]) =>
    leavesBelow(inner, [...path, name], [...steps, { field: name }]),
  )
}

/** Physical and logical type of a primitive. */
export const physicalTypes: Record<Primitive, { physical: number; converted?: number }> = {
  string: { physical: 6, converted: 0 },
  boolean: { physical: 0 },
  int32: { physical: 1 },
  uint8: { physical: 1, converted: 11 },
  int64: { physical: 2 },
  float: { physical: 4 },
  double: { physical: 5 },
}

const OPTIONAL = { i32: 1 }
const REPEATED = { i32: 2 }
const LIST = { i32: 3 }

/** Lists the columns depth first, in the order of the footer. */
export function schemaElements(columns: ParquetColumns): ThriftValue[] {
  const root = { struct: [[4, { text: 'schema' }] as const, [5, { i32: Object.keys(columns).length }] as const] }
  return [root, ...Object.entries(columns).flatMap(([name, type]) => elementsOf(name, type))]
}

function elementsOf(name: string, type: ParquetType): ThriftValue[] {
  if (typeof type === 'string') {
    const { physical, converted } = physicalTypes[type]
    const struct = [
      [1, { i32: physical }],
      [3, OPTIONAL],
      [4, { text: name }],
      [6, converted === undefined ? undefined : { i32: converted }],
    ] as const
    return [{ struct }]
  }
  if ('list' in type) {
    // Three levels: the list, its repetition, its element.
    // https://github.com/apache/parquet-format/blob/master/LogicalTypes.md#lists
    const outer = [
      [3, OPTIONAL],
      [4, { text: name }],
      [5, { i32: 1 }],
      [6, LIST],
    ] as const
    const middle = [
      [3, REPEATED],
      [4, { text: 'list' }],
      [5, { i32: 1 }],
    ] as const
    return [{ struct: outer }, { struct: middle }, ...elementsOf('element', type.list)]
  }
  const fields = Object.entries(type.struct)
  const struct = [
    [3, OPTIONAL],
    [4, { text: name }],
    [5, { i32: fields.length }],
  ] as const
  return [{ struct }, ...fields.flatMap(([field, inner]) => elementsOf(field, inner))]
}
