import type * as z from 'zod'

/** The parts of JSON Schema that the API uses. */
export interface Schema {
  $ref?: string
  type?: string | readonly string[]
  enum?: readonly (string | number)[]
  const?: string | number | boolean | null
  anyOf?: readonly Schema[]
  oneOf?: readonly Schema[]
  items?: Schema
  properties?: Readonly<Record<string, Schema>>
  required?: readonly string[]
  additionalProperties?: Schema | boolean
  description?: string
}

const SCALARS: Readonly<Record<string, string>> = {
  string: 'str',
  integer: 'int',
  number: 'float',
  boolean: 'bool',
  null: 'None',
}

/** Words that cannot be a field of a class. */
const KEYWORDS = new Set(['class', 'def', 'from', 'global', 'import', 'in', 'is', 'lambda', 'not', 'pass', 'return'])

/** Collects the Python types of JSON schemas: a TypedDict for each component and each inlined object. */
export class PythonTypes {
  readonly #components: Readonly<Record<string, Schema>>
  readonly #aliases: ReadonlyMap<string, string>
  readonly #aliasLines: readonly string[]
  /** Class text by name. Empty while the class is being rendered. */
  readonly #classes = new Map<string, string>()
  /** Equal inlined objects share a class: name by schema. */
  readonly #inlined = new Map<string, string>()

  constructor(components: Readonly<Record<string, Schema>>, aliases: Readonly<Record<string, z.ZodEnum>>) {
    this.#components = components
    const entries = Object.entries(aliases)
    this.#aliases = new Map(entries.map(([name, { options }]) => [JSON.stringify(options), name]))
    this.#aliasLines = entries.map(
      ([name, { options }]) => `${name} = Literal[\n${options.map((value) => `    "${value}",\n`).join('')}]`,
    )
  }

  /** Names of all types so far. */
  get names(): string[] {
    return [...this.#aliases.values(), ...this.#classes.keys()].sort()
  }

  /** Returns the type of a schema. `name`: for the class of an inlined object. */
  of(schema: Schema, name: string): string {
    if (schema.$ref !== undefined) return this.#component(schema.$ref.slice('#/components/schemas/'.length))
    if (schema.enum !== undefined) return this.#aliases.get(JSON.stringify(schema.enum)) ?? literal(schema.enum)
    if (schema.const !== undefined) return literal([schema.const])
    const variants = schema.anyOf ?? schema.oneOf
    if (variants !== undefined) return union(variants.map((each) => this.of(each, nameOfVariant(name, each))))
    if (Array.isArray(schema.type)) return union(schema.type.map((type: string) => this.of({ ...schema, type }, name)))
    if (schema.type === 'array') return `list[${this.of(schema.items ?? {}, name.replace(/(?<!s)s$/, ''))}]`
    if (schema.type === 'object') return this.#object(schema, name)
    return SCALARS[schema.type as string] ?? 'Any'
  }

  render(): string {
    return [...this.#aliasLines, ...this.#classes.values()].join('\n\n\n')
  }

  #component(name: string): string {
    if (!this.#classes.has(name)) {
      const schema = this.#components[name]
      if (schema?.properties === undefined) throw new Error(`component ${name} is not an object`)
      this.#define(name, schema)
    }
    return name
  }

  #object(schema: Schema, name: string): string {
    const { properties, additionalProperties } = schema
    if (properties === undefined) {
      const values = typeof additionalProperties === 'object' ? this.of(additionalProperties, `${name}Value`) : 'Any'
      return `dict[str, ${values}]`
    }
    const key = JSON.stringify({ properties, required: schema.required })
    const known = this.#inlined.get(key)
    if (known !== undefined) return known
    if (this.#classes.has(name) || this.#components[name] !== undefined) throw new Error(`two types are named ${name}`)
    this.#inlined.set(key, name)
    this.#define(name, schema)
    return name
  }

  #define(name: string, { properties = {}, required = [] }: Schema): void {
    this.#classes.set(name, '')
    const fields = Object.entries(properties).flatMap(([field, schema]) => {
      if (!/^[A-Za-z_]\w*$/.test(field) || KEYWORDS.has(field)) throw new Error(`${name}.${field} is not a Python name`)
      const type = this.of(schema, `${name}${toPascal(field)}`)
      const comment = schema.description === undefined ? [] : wrap(`# ${schema.description}`, 110)
      const lines = comment.map((line, at) => (at === 0 ? line : `# ${line}`))
      return [...lines, required.includes(field) ? `${field}: ${type}` : `${field}: NotRequired[${type}]`]
    })
    const body = fields.length === 0 ? ['pass'] : fields
    this.#classes.set(name, `class ${name}(TypedDict):\n${body.map((line) => `    ${line}`).join('\n')}`)
  }
}

/** Breaks a line between words. */
export function wrap(line: string, width = 108): string[] {
  const lines = ['']
  for (const word of line.split(' ')) {
    const last = lines.at(-1)!
    if (last !== '' && last.length + word.length >= width) lines.push(word)
    else lines[lines.length - 1] = last === '' ? word : `${last} ${word}`
  }
  return lines
}

/** A variant is named by its discriminator. */
function nameOfVariant(name: string, { properties = {} }: Schema): string {
  const tag = Object.values(properties).find((schema) => typeof schema.const === 'string')?.const
  return typeof tag === 'string' ? name + toPascal(tag) : name
}

function union(types: readonly string[]): string {
  const all = [...new Set(types)]
  if (all.includes('Any')) return 'Any'
  return [...all.filter((type) => type !== 'None'), ...all.filter((type) => type === 'None')].join(' | ')
}

function literal(values: readonly (string | number | boolean | null)[]): string {
  const texts = values.map((value) => {
    if (typeof value === 'string') return JSON.stringify(value)
    if (typeof value === 'number') return String(value)
    return value === null ? 'None' : value ? 'True' : 'False'
  })
  return `Literal[${texts.join(', ')}]`
}

function toPascal(name: string): string {
  return name.replaceAll(/(?:^|[_-])(\w)/g, (_, letter: string) => letter.toUpperCase())
}
