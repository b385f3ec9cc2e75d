import { writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { runProgram } from '../../../lib/process/run-program.ts'
import type { HarnessPackage } from '../presets/harness.ts'

/** Puts a package with all it needs into an empty folder. Gives what went wrong, if anything. No script of it runs. */
export async function installFromNpm(
  { name, version }: HarnessPackage,
  folder: string,
  { env, signal }: { env: Readonly<Record<string, string | undefined>>; signal: AbortSignal },
): Promise<string | undefined> {
  // Without one of its own npm would look for the project around it.
  await writeFile(join(folder, 'package.json'), '{ "private": true }\n')
  const flags = ['--prefix', folder, '--ignore-scripts', '--no-audit', '--no-fund', '--omit=dev', '--save-exact']
  const { exitCode, stderr, stdout } = await runProgram(['npm', 'install', ...flags, `${name}@${version}`], {
    cwd: folder,
    env,
    signal,
  })
  return exitCode === 0 ? undefined : `npm ended with ${exitCode}:\n${(stderr || stdout).trim()}`
}
