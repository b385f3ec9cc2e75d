import { randomUUID } from 'node:crypto'
import { chmod, mkdir, rename, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import type { Config } from '../../config/config.ts'
import { orInvalid } from '../../config/or-invalid.ts'

/** Creates the folder of the jobs. It has results and tokens, so only its owner can read it. */
export async function makeWorkDir(workDir: string): Promise<void> {
  await orInvalid(`cluster.slurm.work_dir: ${workDir} cannot be written`, async () => {
    for (const name of ['scripts', 'configs', 'secrets', 'logs', 'nodes'])
      await mkdir(join(workDir, name), { recursive: true, mode: 0o700 })
  })
}

/** Writes a token to a file for jobs. */
export async function keepToken(workDir: string, name: string, token: string): Promise<string> {
  return keepFile(join(workDir, 'secrets', name), `${token}\n`)
}

/**
 * Writes the effective configuration for jobs, with absolute paths, so that a later restart of a job does not depend on
 * flags, environment and config file.
 */
export async function keepConfig(workDir: string, name: string, config: Config): Promise<string> {
  return keepFile(join(workDir, 'configs', `${name}-${randomUUID()}.yaml`), `${JSON.stringify(config, undefined, 2)}\n`)
}

export async function keepScript(workDir: string, name: string, text: string): Promise<string> {
  const path = await keepFile(join(workDir, 'scripts', `${name}-${randomUUID()}.sh`), text)
  await chmod(path, 0o700)
  return path
}

async function keepFile(path: string, text: string): Promise<string> {
  const draft = `${path}.${randomUUID()}`
  await writeFile(draft, text, { mode: 0o600, flag: 'wx' })
  await rename(draft, path)
  return path
}
