import { realpath } from 'node:fs/promises'
import { isAbsolute } from 'node:path'
import { pathToFileURL } from 'node:url'
import { errnoOf } from '../fs/errno.ts'

export interface ModuleExpectation {
  /** Kind of the module, with which messages begin: `Builder`. */
  what: string
  /** Name of the required export. */
  name: string
  /** Describes what an exported value lacks; empty for a valid value. */
  lacks: (value: unknown) => readonly string[]
  /** Real paths of the allowed modules, from `allowModules()`. */
  allowed: readonly string[]
}

/** In words that say what to do. */
export interface ModuleProblem {
  problem: string
  cause?: unknown
}

/**
 * Loads an export of a user's module. A module has all permissions of this process, so it is loaded only if its real path is
 * allowed: a link to an allowed module works, but a link cannot replace its code.
 */
export async function loadExport(
  path: string,
  { what, name, lacks, allowed }: ModuleExpectation,
): Promise<{ value: unknown } | ModuleProblem> {
  const label = `${what} module ${path}`
  if (!isAbsolute(path)) return { problem: `${label} must be an absolute path.` }
  const real = await realPath(path)
  if (real === undefined) return { problem: `${label} is not there, or cannot be read.` }
  if (!allowed.includes(real)) {
    const leads = real === path ? '' : `, which is a link to ${real},`
    return { problem: `${label}${leads} is not on the list of allowed modules. Add it there to trust its code.` }
  }
  let exported: Readonly<Record<string, unknown>>
  try {
    exported = (await import(pathToFileURL(real).href)) as Readonly<Record<string, unknown>>
  } catch (cause) {
    const message = cause instanceof Error ? cause.message : String(cause)
    return { problem: `${label} cannot be loaded: ${message}.`, cause }
  }
  if (!(name in exported)) return { problem: `${label} must export "${name}". ${exportsOf(exported)}` }
  const value = exported[name]
  const missing = lacks(value)
  if (missing.length === 0) return { value }
  return { problem: `${label} must export "${name}", and what it exports lacks ${missing.join(', ')}.` }
}

function exportsOf(exported: Readonly<Record<string, unknown>>): string {
  const names = Object.keys(exported)
  return names.length === 0 ? 'It exports nothing.' : `It exports ${names.join(', ')}.`
}

/**
 * Resolves the paths of allowed modules once, when the list is read, so that a link that changes later allows nothing new. A
 * path that does not exist is kept and allows nothing.
 */
export async function allowModules(paths: readonly string[]): Promise<string[]> {
  return Promise.all(paths.map(async (path) => (await realPath(path)) ?? path))
}

async function realPath(path: string): Promise<string | undefined> {
  try {
    return await realpath(path)
  } catch (error) {
    if (['ENOENT', 'ENOTDIR', 'EACCES', 'ELOOP'].includes(errnoOf(error) ?? '')) return undefined
    throw error
  }
}

type FieldType = 'string' | 'function' | 'object' | 'boolean'

/** For `lacks`: names the fields of a value that are missing or have another type. */
export function lacksFields(value: unknown, fields: Readonly<Record<string, FieldType>>): string[] {
  if (typeof value !== 'object' || value === null)
    return [`everything: it is ${value === null ? 'null' : typeof value}`]
  const given = value as Readonly<Record<string, unknown>>
  return Object.entries(fields).flatMap(([field, type]) => {
    const found = given[field]
    const isThere = typeof found === type && found !== null && found !== ''
    return isThere ? [] : [type === 'function' ? `a function ${field}()` : `${field}, ${ARTICLES[type]}`]
  })
}

const ARTICLES: Readonly<Record<FieldType, string>> = {
  string: 'a string',
  function: 'a function',
  object: 'an object',
  boolean: 'true or false',
}
