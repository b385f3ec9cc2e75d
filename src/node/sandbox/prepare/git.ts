import { spawn } from 'node:child_process'
import { onAbort } from '../../../lib/async/until-aborted.ts'
import { RolloutError } from '../../../model/failure.ts'
import { accessTo, type GitCredential } from './git-access.ts'

export interface GitOptions {
  /** Environment of this process; git sees only the variables that it needs to reach a repository. */
  env: Readonly<Record<string, string | undefined>>
  signal: AbortSignal
  /** The only repository that git may access; absent: none. */
  remote?: string
  /** Absent: none. */
  credentials?: readonly GitCredential[]
}

/** Length of a failed command's output in messages. */
const TOLD_CHARACTERS = 2000

/**
 * Runs git on an untrusted repository: no hooks, no settings of the machine or the user, no transport but that of
 * `remote`, no credentials but the given ones (no credential helper, `.netrc`, ssh agent, ssh configuration or Kerberos
 * ticket of the user), no prompts. Returns the output. Throws RolloutError `runtime.prepare-failed`, or
 * `config.invalid` for a remote that git must not access. When the signal is aborted, all processes of git have ended
 * before this rejects.
 */
export async function runUntrustedGit(args: readonly string[], options: GitOptions): Promise<string> {
  const { env, signal } = options
  signal.throwIfAborted()
  const access = accessTo(options.remote, options.credentials ?? [])
  // Other users must be able to read the checkout, whatever our umask is.
  const settings = [...SETTINGS, ...access.settings]
  const command = ['-c', 'umask 022; exec git "$@"', 'git', ...settings.flatMap((one) => ['-c', one]), ...args]
  const child = spawn('/bin/sh', command, {
    env: { ...pick(env, KEPT), ...VARIABLES, ...access.env },
    stdio: ['ignore', 'pipe', 'pipe'],
    // A process group, so that git's helper processes can be killed too.
    detached: true,
  })
  let [stdout, stderr] = ['', '']
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text))
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr = (stderr + text).slice(-TOLD_CHARACTERS)))
  using _ = onAbort(signal, () => void (child.pid !== undefined && killGroup(child.pid)))
  const exitCode = await new Promise<number>((resolve) => {
    child.once('error', (error) => ((stderr = error.message), resolve(127)))
    child.once('close', (code) => resolve(code ?? 128))
  })
  signal.throwIfAborted()
  if (exitCode === 0) return stdout
  throw new RolloutError('runtime.prepare-failed', `git ended with ${exitCode}: ${withoutLogin(stderr.trim())}`)
}

/** Removes user names and passwords from URLs in a text. */
export function withoutLogin(text: string): string {
  return text.replaceAll(/(\w+:\/\/)[^\s/@']*@/g, '$1')
}

const SETTINGS = [
  'core.hooksPath=/dev/null',
  'core.attributesFile=/dev/null',
  'core.excludesFile=/dev/null',
  'core.fsmonitor=false',
  'core.logAllRefUpdates=false',
  'submodule.recurse=false',
  'fetch.recurseSubmodules=false',
  'protocol.version=2',
  // With a Kerberos ticket of the user, git could authenticate without a credential.
  'http.emptyAuth=false',
  // No background jobs, and no removal of unreferenced objects.
  'gc.auto=0',
  'maintenance.auto=false',
  'advice.detachedHead=false',
  'init.defaultBranch=main',
  // A server that sends nothing is abandoned.
  'http.lowSpeedLimit=1000',
  'http.lowSpeedTime=60',
]

const VARIABLES = {
  GIT_CONFIG_NOSYSTEM: '1',
  GIT_CONFIG_GLOBAL: '/dev/null',
  GIT_ATTR_NOSYSTEM: '1',
  GIT_TERMINAL_PROMPT: '0',
  GIT_ASKPASS: '/bin/false',
  // Replaced if there is a key.
  GIT_SSH_COMMAND: '/bin/false',
  // Not a folder, so it contains no `.netrc` and no other file of the user.
  HOME: '/dev/null',
  KRB5CCNAME: 'FILE:/dev/null',
  LC_ALL: 'C',
}

const KEPT = [
  'PATH',
  'SSL_CERT_FILE',
  'SSL_CERT_DIR',
  'GIT_SSL_CAINFO',
  'HTTPS_PROXY',
  'https_proxy',
  'ALL_PROXY',
  'NO_PROXY',
  'no_proxy',
]

function pick(env: GitOptions['env'], names: readonly string[]): Record<string, string> {
  return Object.fromEntries(names.flatMap((name) => (env[name] === undefined ? [] : [[name, env[name]]])))
}

function killGroup(pid: number): void {
  try {
    process.kill(-pid, 'SIGKILL')
  } catch {
    // The group has already ended.
  }
}
