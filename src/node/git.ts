import { spawn } from 'node:child_process'
import { RolloutError } from '../model/failure.ts'

export interface GitOptions {
  /** Ours, of which git sees only what it takes to reach a repository. */
  env: Readonly<Record<string, string | undefined>>
  signal: AbortSignal
}

/** How much of what a failed command wrote is told. */
const TOLD_CHARACTERS = 2000

/**
 * Runs git on a repository that nobody trusts: no hooks, no settings of the machine or the user, no transport but https,
 * ssh and files, no questions. Gives what it printed. Throws RolloutError `runtime.prepare-failed`; when the signal fires,
 * all that git started has ended by the time this rejects.
 */
export async function runGit(args: readonly string[], { env, signal }: GitOptions): Promise<string> {
  signal.throwIfAborted()
  // Others than we must be able to read what is checked out, whatever our own mask is.
  const command = ['-c', 'umask 022; exec git "$@"', 'git', ...SETTINGS.flatMap((one) => ['-c', one]), ...args]
  const child = spawn('/bin/sh', command, {
    env: { ...pick(env, KEPT), ...VARIABLES },
    stdio: ['ignore', 'pipe', 'pipe'],
    // A group, by which what fetches on git's behalf ends with it.
    detached: true,
  })
  let [stdout, stderr] = ['', '']
  child.stdout.setEncoding('utf8').on('data', (text: string) => (stdout += text))
  child.stderr.setEncoding('utf8').on('data', (text: string) => (stderr = (stderr + text).slice(-TOLD_CHARACTERS)))
  const kill = (): void => void (child.pid !== undefined && killGroup(child.pid))
  signal.addEventListener('abort', kill, { once: true })
  try {
    const exitCode = await new Promise<number>((resolve) => {
      child.once('error', (error) => ((stderr = error.message), resolve(127)))
      child.once('close', (code) => resolve(code ?? 128))
    })
    signal.throwIfAborted()
    if (exitCode === 0) return stdout
    throw new RolloutError('runtime.prepare-failed', `git ended with ${exitCode}: ${withoutLogin(stderr.trim())}`)
  } finally {
    signal.removeEventListener('abort', kill)
  }
}

/** A URL, or text with some, without names and passwords. */
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
  'protocol.allow=never',
  'protocol.https.allow=always',
  'protocol.ssh.allow=always',
  'protocol.file.allow=always',
  // Nothing goes on in the background, and what is not referred to stays.
  'gc.auto=0',
  'maintenance.auto=false',
  'advice.detachedHead=false',
  'init.defaultBranch=main',
  // A server that goes silent is given up.
  'http.lowSpeedLimit=1000',
  'http.lowSpeedTime=60',
]

const VARIABLES = {
  GIT_CONFIG_NOSYSTEM: '1',
  GIT_CONFIG_GLOBAL: '/dev/null',
  GIT_ATTR_NOSYSTEM: '1',
  GIT_TERMINAL_PROMPT: '0',
  GIT_ASKPASS: '/bin/false',
  GIT_SSH_COMMAND: 'ssh -o BatchMode=yes -o ConnectTimeout=30',
  LC_ALL: 'C',
}

/** Keys of ssh and a `.netrc` are found below HOME. */
const KEPT = [
  'PATH',
  'HOME',
  'USER',
  'SSH_AUTH_SOCK',
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
    // It is gone already.
  }
}
