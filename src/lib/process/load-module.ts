import { realpath } from 'node:fs/promises'
import { isAbsolute } from 'node:path'
import { pathToFileURL } from 'node:url'
import { errnoOf } from '../fs/errno.ts'

export interface ModuleExpectation {
  /** What the module is for, as a message begins: `Builder`. */
  what: string
  /** What it must export. */
  name: string
  /** What an exported value lacks, in words; empty when it is what is wanted. */
  lacks: (value: unknown) => readonly string[]
  /** Real paths of the modules whose code is trusted, as `allowModules` gives them. */
  allowed: readonly string[]
}

/** In words that say what to do. */
export interface ModuleProblem {
  problem: string
  cause?: unknown
}

/**
 * What a module of the user's exports under a name. A module may do anything this process may, so nothing of it runs unless
 * its real path was allowed beforehand: a link to it will do, but a link cannot put other code in its place.
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
 * Where those paths lead now. Made once, when the list is read: a link that is changed later allows nothing new. One that
 * leads nowhere stays as it is, and allows nothing.
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

/** For `lacks`: which fields of a value are missing or of another type, by name. */
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
