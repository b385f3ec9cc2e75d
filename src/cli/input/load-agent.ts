import { readFile } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { parse } from 'yaml'
import * as z from 'zod'
import { orInvalid } from '../../config/or-invalid.ts'
import { RolloutError } from '../../model/failure.ts'
import { AgentSpec } from '../../model/task.ts'
import { isTree } from '../../lib/fs/merge-trees.ts'

/** The harness of the flags; undefined if the file names it. */
type Named = { harness: string } | { import_path: string } | undefined

/**
 * Loads a JSON or YAML file. Relative paths of skills and of the harness's module start at its folder. Throws RolloutError
 * `config.invalid`.
 */
export async function loadAgent(file: string, named: Named): Promise<AgentSpec> {
  const problem = `Cannot read the agent file ${file}`
  const value: unknown = await orInvalid(problem, async () => parse(await readFile(file, 'utf8')))
  const agent = AgentSpec.safeParse(isTree(value) ? { ...value, ...named } : value)
  if (agent.success) return resolveAgentPaths(agent.data, dirname(file))
  throw new RolloutError('config.invalid', `${problem}: ${z.prettifyError(agent.error)}`)
}

export function resolveAgentPaths(agent: AgentSpec, folder: string): AgentSpec {
  const at = (path: string | null | undefined) => (path == null ? path : resolve(folder, path))
  return { ...agent, skills_path: at(agent.skills_path), import_path: at(agent.import_path) }
}
