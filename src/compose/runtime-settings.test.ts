import { expect, test } from 'vitest'
import { Config } from '../config/config.ts'
import { readGitCredentials } from './runtime-settings.ts'

test('readGitCredentials() loads tokens from the configured files and variables', async () => {
  const config = Config.parse({
    node: {
      checkouts: {
        credentials: [
          { host: 'github.com', token_env: 'GITHUB_TOKEN' },
          { host: 'git.example', ssh_key_file: '/k', known_hosts_file: '/h' },
        ],
      },
    },
  })
  expect(await readGitCredentials(config, { GITHUB_TOKEN: 'secret\n' })).toEqual([
    { kind: 'token', host: 'github.com', user: 'git', token: 'secret' },
    { kind: 'ssh', host: 'git.example', keyFile: '/k', knownHostsFile: '/h' },
  ])
  await expect(readGitCredentials(config, {})).rejects.toMatchObject({
    code: 'config.invalid',
    message: expect.stringContaining('node.checkouts.credentials.0.token_env'),
  })
})
