import { readFile } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { parse } from 'yaml'
import * as z from 'zod'
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
  const agent = parseAgent(file, await readText(file), named)
  const fromFile = (path: string): string => resolve(dirname(file), path)
  return {
    ...agent,
    ...(agent.skills_path == null ? {} : { skills_path: fromFile(agent.skills_path) }),
    ...(agent.import_path == null ? {} : { import_path: fromFile(agent.import_path) }),
  }
}

async function readText(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8')
  } catch (error) {
    throw invalid(file, (error as Error).message, error)
  }
}

function parseAgent(file: string, text: string, named: Named): AgentSpec {
  let value: unknown
  try {
    value = parse(text)
  } catch (error) {
    throw invalid(file, (error as Error).message, error)
  }
  const agent = AgentSpec.safeParse(isTree(value) ? { ...value, ...named } : value)
  if (agent.success) return agent.data
  throw invalid(file, z.prettifyError(agent.error))
}

function invalid(file: string, problem: string, cause?: unknown): RolloutError {
  return new RolloutError('config.invalid', `Cannot read the agent file ${file}: ${problem}`, { cause })
}
