import { homedir } from 'node:os'
import { dirname, resolve } from 'node:path'
import { isTree } from '../lib/fs/merge-trees.ts'
import { RolloutError } from '../model/failure.ts'
import { ALTERNATIVES, Config } from './config.ts'
import { type ConfigFile, loadConfigFile } from './config-file.ts'
import { fromText, readEnvironment, type Setting } from './environment.ts'
import { explainIssue } from './explain-issue.ts'
import { type ConfigSchema, listFields, schemaAt, toJsonSchema } from './list-fields.ts'

/** Source of a value. */
export type Origin =
  | { kind: 'flag' | 'environment'; name: string }
  | { kind: 'file'; name: string; line: number }
  | { kind: 'default' }

export interface LoadedConfig {
  config: Config
  /** Path of the config file; absent: no file was read. */
  file?: string
  /** Origins of all values that are set, by path (`server.port`). Values without an entry are defaults. */
  origins: ReadonlyMap<string, Origin>
  warnings: readonly string[]
}

export interface ConfigSources {
  /** Value of `--config`; the file must exist. Absent: `POLAR_CONFIG`, else `polar.yaml` if it exists. */
  file?: string
  env: Readonly<Record<string, string | undefined>>
  /** Settings of a library user, instead of a file. */
  settings?: Readonly<Record<string, unknown>>
  /** Values of flags with the paths that they set. An undefined value sets nothing. */
  flags?: readonly { flag: string; path: string; value: string | readonly string[] | boolean | undefined }[]
  cwd?: string
}

const DEFAULT_FILE = 'polar.yaml'

/** Loads the configuration. Precedence: flag, environment, file, default. Throws `config.invalid` with all problems. */
export async function loadConfig({
  file,
  settings: given,
  env,
  flags = [],
  cwd = process.cwd(),
}: ConfigSources): Promise<LoadedConfig> {
  const schema = toJsonSchema()
  const read = given === undefined ? await findFile(file, env, cwd) : undefined
  const { settings, warnings } = readEnvironment(env, listFields(schema))
  const fromFlags: Setting[] = flags.flatMap(({ flag, path, value }) => {
    if (value === undefined || value === false || (Array.isArray(value) && value.length === 0)) return []
    const typed = typeof value === 'string' ? fromText(value, schemaAt(schema, path.split('.'))) : value
    return [{ path, value: typed, origin: { kind: 'flag' as const, name: `--${flag}` } }]
  })
  const layers = new Layers(read, given)
  for (const layer of [settings, fromFlags]) layers.add(layer)
  const parsed = Config.safeParse(layers.tree)
  if (!parsed.success) {
    const problems = parsed.error.issues.flatMap((issue) => explainIssue(issue, (path) => layers.at(path), schema))
    const lines = problems.map(({ path, problem }) => `${layers.placeOf(path)}: ${problem}`)
    throw new RolloutError('config.invalid', [...new Set(lines)].join('\n'))
  }
  const base = (path: string): string => (layers.originOf(path)?.kind === 'file' ? dirname(read!.path) : cwd)
  const config = resolvePaths(parsed.data, schema, base) as Config
  return { config, file: read?.path, origins: layers.origins, warnings }
}

async function findFile(
  named: string | undefined,
  env: Readonly<Record<string, string | undefined>>,
  cwd: string,
): Promise<ConfigFile | undefined> {
  const wanted = named ?? (env['POLAR_CONFIG'] || undefined)
  const found = await loadConfigFile(resolve(cwd, wanted ?? DEFAULT_FILE), cwd)
  if (found !== undefined || wanted === undefined) return found
  const source = named === undefined ? 'POLAR_CONFIG' : '--config'
  throw new RolloutError('config.invalid', `The file ${resolve(cwd, wanted)} of ${source} does not exist.`)
}

/** The tree of the file, overlaid with the environment and the flags; records the origin of each value. */
class Layers {
  readonly #file: ConfigFile | undefined
  readonly tree: Record<string, unknown>
  readonly origins = new Map<string, Origin>()

  constructor(file: ConfigFile | undefined, settings: Readonly<Record<string, unknown>> = {}) {
    this.#file = file
    this.tree = structuredClone(file?.tree ?? settings)
    if (file !== undefined) this.#noteFile(this.tree, [])
  }

  #noteFile(tree: Readonly<Record<string, unknown>>, path: readonly string[]): void {
    for (const [key, value] of Object.entries(tree)) {
      const at = [...path, key]
      if (isTree(value)) this.#noteFile(value, at)
      else this.origins.set(at.join('.'), { kind: 'file', name: this.#file!.name, line: this.#file!.lineOf(at) })
    }
  }

  /** Adds a layer. A key unsets its alternatives in lower layers; alternatives within one layer are left for the schema to reject. */
  add(settings: readonly Setting[]): void {
    const paths = settings.map(({ path }) => path)
    for (const path of paths) {
      const others = ALTERNATIVES.find((group) => group.includes(path)) ?? []
      for (const other of others) if (!paths.includes(other)) this.#remove(other)
    }
    for (const { path, value, origin } of settings) {
      put(this.tree, path.split('.'), value)
      this.origins.set(path, origin)
    }
  }

  #remove(path: string): void {
    const keys = path.split('.')
    const parent = this.at(keys.slice(0, -1))
    if (isTree(parent)) delete (parent as Record<string, unknown>)[keys.at(-1)!]
    this.origins.delete(path)
  }

  at(path: readonly PropertyKey[]): unknown {
    let value: unknown = this.tree
    for (const key of path) value = typeof value === 'object' && value !== null ? (value as never)[key] : undefined
    return value
  }

  /** Returns the origin of a value, or of its nearest parent that has one. */
  originOf(path: string): Origin | undefined {
    for (let at = path; at !== ''; at = at.slice(0, Math.max(0, at.lastIndexOf('.')))) {
      const origin = this.origins.get(at)
      if (origin !== undefined) return origin
    }
    return undefined
  }

  /** Location for messages: `polar.yaml:12: server.port`, or `--port`. */
  placeOf(path: readonly PropertyKey[]): string {
    const name = path.map(String).join('.')
    const origin = this.originOf(name)
    if (origin !== undefined && (origin.kind === 'flag' || origin.kind === 'environment')) return origin.name
    const file = this.#file
    return file === undefined ? name : `${file.name}:${file.lineOf(path)}: ${name === '' ? 'the file' : name}`
  }
}

function put(tree: Record<string, unknown>, [key, ...rest]: readonly string[], value: unknown): void {
  if (rest.length === 0) {
    tree[key!] = value
    return
  }
  const inner = tree[key!]
  // The schema rejects a section that is not an object.
  if (inner !== undefined && !isTree(inner)) return
  const next = (inner ?? {}) as Record<string, unknown>
  tree[key!] = next
  put(next, rest, value)
}

/** Makes all paths absolute, so that a change of the working directory does not matter. */
function resolvePaths(
  value: unknown,
  schema: ConfigSchema | undefined,
  base: (path: string) => string,
  path = '',
): unknown {
  const below = (key: string): string => (path === '' ? key : `${path}.${key}`)
  if (typeof value === 'string' && schema?.format === 'path') {
    return value.startsWith('~/') ? resolve(homedir(), value.slice(2)) : resolve(base(path), value)
  }
  if (Array.isArray(value))
    return value.map((item, index) => resolvePaths(item, schema?.items, base, below(String(index))))
  if (!isTree(value)) return value
  return Object.fromEntries(
    Object.entries(value).map(([key, inner]) => [
      key,
      resolvePaths(inner, schema === undefined ? undefined : schemaAt(schema, [key]), base, below(key)),
    ]),
  )
}
