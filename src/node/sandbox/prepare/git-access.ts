import { shellWord } from '../../../lib/process/shell-word.ts'
import { RolloutError } from '../../../model/failure.ts'

/** A credential for the repositories of one host, from the operator's configuration. */
export type GitCredential =
  | { kind: 'token'; host: string; user: string; token: string }
  | { kind: 'ssh'; host: string; keyFile: string; knownHostsFile: string }

/** Settings and environment variables of git. Secrets are in the environment, which `ps` does not show. */
export interface GitAccess {
  settings: readonly string[]
  env: Readonly<Record<string, string>>
}

/**
 * Returns what git may use to reach a repository: only the transport of its URL, and the credential of its host if
 * there is one. Without a repository, git may use no transport. Throws `config.invalid` for an ssh host without a key.
 */
export function accessTo(repository: string | undefined, credentials: readonly GitCredential[]): GitAccess {
  if (repository === undefined) return { settings: NO_TRANSPORT, env: {} }
  if (/^(?:\/|file:\/\/)/.test(repository)) return { settings: only('file'), env: {} }
  const url = URL.parse(repository)
  if (url?.protocol === 'https:') return accessByToken(url, credentials)
  if (url?.protocol === 'ssh:') return accessByKey(url, credentials)
  throw new RolloutError(
    'config.invalid',
    'The repository of a checkout must be an https or ssh URL or a path of the node.',
  )
}

function accessByToken(url: URL, credentials: readonly GitCredential[]): GitAccess {
  const found = credentials.find((one) => one.kind === 'token' && isHost(one.host, url))
  if (found?.kind !== 'token') return { settings: only('https'), env: {} }
  // Git uses the helper only for exactly this host and port, also after a redirect.
  const settings = [
    ['credential.helper', ''],
    [`credential.https://${url.host}.helper`, HELPER],
  ] as const
  return {
    settings: only('https'),
    env: {
      GIT_CONFIG_COUNT: String(settings.length),
      ...Object.fromEntries(
        settings.flatMap(([key, value], index) => [
          [`GIT_CONFIG_KEY_${index}`, key],
          [`GIT_CONFIG_VALUE_${index}`, value],
        ]),
      ),
      POLAR_GIT_USER: found.user,
      POLAR_GIT_TOKEN: found.token,
    },
  }
}

function accessByKey(url: URL, credentials: readonly GitCredential[]): GitAccess {
  const found = credentials.find((one) => one.kind === 'ssh' && isHost(one.host, url))
  if (found?.kind !== 'ssh') {
    const message = `A checkout by ssh from ${url.host} needs a key of this host in node.checkouts.credentials.`
    throw new RolloutError('config.invalid', message)
  }
  const options = [
    ...SSH_OPTIONS,
    `IdentityFile=${sshPath(found.keyFile)}`,
    `UserKnownHostsFile=${sshPath(found.knownHostsFile)}`,
  ]
  const command = ['ssh', '-F', '/dev/null', ...options.flatMap((option) => ['-o', shellWord(option)])]
  return { settings: only('ssh'), env: { GIT_SSH_COMMAND: command.join(' '), GIT_SSH_VARIANT: 'ssh' } }
}

const NO_TRANSPORT = ['protocol.allow=never']

function only(transport: 'https' | 'ssh' | 'file'): string[] {
  return [...NO_TRANSPORT, `protocol.${transport}.allow=always`]
}

const HELPER =
  '!f() { test "$1" = get && printf "username=%s\\npassword=%s\\n" "$POLAR_GIT_USER" "$POLAR_GIT_TOKEN"; }; f'

/** One key and one list of known hosts; no agent, no other authentication, no prompts. */
const SSH_OPTIONS = [
  'BatchMode=yes',
  'ConnectTimeout=30',
  'IdentitiesOnly=yes',
  'IdentityAgent=none',
  'PreferredAuthentications=publickey',
  'StrictHostKeyChecking=yes',
  'GlobalKnownHostsFile=/dev/null',
  'ClearAllForwardings=yes',
  'ForwardAgent=no',
  'PermitLocalCommand=no',
]

const DEFAULT_PORTS: Readonly<Record<string, string>> = { 'https:': '443', 'ssh:': '22' }

function isHost(host: string, url: URL): boolean {
  const own = new URL(`${url.protocol}//${host}`)
  const portOf = ({ port, protocol }: URL): string => port || (DEFAULT_PORTS[protocol] ?? '')
  return own.hostname.toLowerCase() === url.hostname.toLowerCase() && portOf(own) === portOf(url)
}

/** In ssh's configuration, `%` begins a variable, and white space ends a path without quotes. */
function sshPath(path: string): string {
  return `"${path.replaceAll('%', '%%').replaceAll(/["\\]/g, String.raw`\$&`)}"`
}
