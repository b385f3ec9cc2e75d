import { readFile } from 'node:fs/promises'
import { dirname, resolve } from 'node:path'
import { parse } from 'yaml'
import * as z from 'zod'
import { RolloutError } from '../model/failure.ts'
import { AgentSpec } from '../model/task.ts'
import type { AgentOptions } from '../node/harness-launch.ts'
import { isTree } from '../lib/merge-trees.ts'

/** JSON or YAML. A relative skills_path is meant from where the file is. Throws RolloutError `config.invalid`. */
export async function loadAgentOptions(file: string, harness: string): Promise<AgentOptions> {
  const agent = parseAgent(file, await readText(file), harness)
  return agent.skills_path == null ? agent : { ...agent, skills_path: resolve(dirname(file), agent.skills_path) }
}

async function readText(file: string): Promise<string> {
  try {
    return await readFile(file, 'utf8')
  } catch (error) {
    throw invalid(file, (error as Error).message, error)
  }
}

function parseAgent(file: string, text: string, harness: string): AgentSpec {
  let value: unknown
  try {
    value = parse(text)
  } catch (error) {
    throw invalid(file, (error as Error).message, error)
  }
  const agent = AgentSpec.safeParse(isTree(value) ? { ...value, harness } : value)
  if (agent.success) return agent.data
  throw invalid(file, z.prettifyError(agent.error))
}

function invalid(file: string, problem: string, cause?: unknown): RolloutError {
  return new RolloutError('config.invalid', `Cannot read the agent file ${file}: ${problem}`, { cause })
}
