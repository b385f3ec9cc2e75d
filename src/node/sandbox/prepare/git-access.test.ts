import { describe, expect, test } from 'vitest'
import { accessTo, type GitCredential } from './git-access.ts'

const credentials: GitCredential[] = [
  { kind: 'token', host: 'GitHub.com', user: 'git', token: 'github-token' },
  { kind: 'token', host: 'git.example:8443', user: 'robot', token: 'example-token' },
  { kind: 'ssh', host: 'git.example', keyFile: '/k/100%"', knownHostsFile: '/k/known' },
]

function tokenFor(repository: string): string | undefined {
  return accessTo(repository, credentials).env['POLAR_GIT_TOKEN']
}

describe('accessTo()', () => {
  test('allows the transport of the repository and no other', () => {
    const allowed = (repository?: string) =>
      accessTo(repository, credentials).settings.filter((setting) => setting.endsWith('=always'))
    expect(allowed()).toEqual([])
    expect(allowed('/srv/x')).toEqual(['protocol.file.allow=always'])
    expect(allowed('file:///srv/x')).toEqual(['protocol.file.allow=always'])
    expect(allowed('https://github.com/x')).toEqual(['protocol.https.allow=always'])
    expect(allowed('ssh://git@git.example/x')).toEqual(['protocol.ssh.allow=always'])
    for (const repository of ['http://github.com/x', 'ext::sh -c id', 'git://github.com/x', 'https://', ''])
      expect(() => accessTo(repository, credentials), repository).toThrow(/https or ssh/)
  })

  test('returns the token of exactly the host and port', () => {
    expect(tokenFor('https://github.com/x')).toBe('github-token')
    expect(tokenFor('https://github.com:443/x')).toBe('github-token')
    expect(tokenFor('https://git.example:8443/x')).toBe('example-token')
    for (const host of ['git.example', 'github.com:8443', 'github.com.evil', 'evilgithub.com', 'api.github.com'])
      expect(tokenFor(`https://${host}/x`), host).toBeUndefined()
  })

  test('returns the key of an ssh host, quoted for ssh and for the shell', () => {
    const { env } = accessTo('ssh://git@git.example:22/x', credentials)
    expect(env['GIT_SSH_COMMAND']).toContain(String.raw`'IdentityFile="/k/100%%\""'`)
    expect(env['POLAR_GIT_TOKEN']).toBeUndefined()
    for (const host of ['github.com', 'git.example:2222', 'other.example'])
      expect(() => accessTo(`ssh://git@${host}/x`, credentials), host).toThrow(/needs a key of this host/)
  })
})
