import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { runProgram } from '../../../lib/process/run-program.ts'
import type { HarnessPackage } from '../presets/harness.ts'

/** Installs a package with its dependencies into an empty folder, without running scripts. Returns the error message, if any. */
export async function installFromNpm(
  { name, version }: HarnessPackage,
  folder: string,
  { env, signal }: { env: Readonly<Record<string, string | undefined>>; signal: AbortSignal },
): Promise<string | undefined> {
  // Without this file npm would use the project of a parent folder.
  await writeFile(join(folder, 'package.json'), '{ "private": true }\n')
  const flags = ['--prefix', folder, '--ignore-scripts', '--no-audit', '--no-fund', '--omit=dev', '--save-exact']
  const { exitCode, stderr, stdout } = await runProgram(['npm', 'install', ...flags, `${name}@${version}`], {
    cwd: folder,
    env,
    signal,
  })
  return exitCode === 0 ? undefined : `npm ended with ${exitCode}:\n${(stderr || stdout).trim()}`
}
