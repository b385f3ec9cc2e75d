import { readFile } from 'node:fs/promises'
import { join } from 'node:path'
import { runProgram } from '../../../lib/process/run-program.ts'

export interface IndexDeps {
  env: Readonly<Record<string, string | undefined>>
  signal: AbortSignal
}

/** Prints pip's default index. */
const PIP_DEFAULT = 'from pip._internal.models.index import PyPI; print(PyPI.simple_url)'

/**
 * Returns the URL of this machine's Python package index: the user's, that of pip's settings, or pip's default.
 * Undefined if unknown.
 */
export async function findPythonIndex({ env, signal }: IndexDeps): Promise<string | undefined> {
  for (const name of ['PIP_INDEX_URL', 'UV_DEFAULT_INDEX', 'UV_INDEX_URL']) {
    // uv accepts a name before the URL: `company=https://…`.
    const url = env[name]?.replace(/^[\w-]+=(?=https?:)/, '')
    if (url !== undefined && isWebUrl(url)) return url
  }
  for (const file of configFiles(env)) {
    const text = await readFile(file, 'utf8').catch(() => '')
    const url = /^\s*index[-_]url\s*[=:]\s*(\S+)/m.exec(text)?.[1]
    if (url !== undefined && isWebUrl(url)) return url
  }
  const pip = await runProgram(['python3', '-I', '-c', PIP_DEFAULT], { env, signal })
  const url = pip.stdout.trim()
  return pip.exitCode === 0 && isWebUrl(url) ? url : undefined
}

/** Files of pip's settings on Linux, highest precedence first. */
function configFiles(env: IndexDeps['env']): string[] {
  const home = env['HOME'] === undefined ? [] : [env['HOME']]
  const ofUser =
    env['XDG_CONFIG_HOME'] === undefined ? home.map((dir) => join(dir, '.config')) : [env['XDG_CONFIG_HOME']]
  return [
    ...(env['PIP_CONFIG_FILE'] === undefined ? [] : [env['PIP_CONFIG_FILE']]),
    ...ofUser.map((dir) => join(dir, 'pip', 'pip.conf')),
    ...home.map((dir) => join(dir, '.pip', 'pip.conf')),
    '/etc/pip.conf',
    '/etc/xdg/pip/pip.conf',
  ]
}

function isWebUrl(text: string): boolean {
  return /^https?:\/\//.test(text) && URL.canParse(text)
}
