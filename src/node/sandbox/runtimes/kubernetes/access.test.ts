import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { stringify } from 'yaml'
import { loadAccess } from './access.ts'

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-access-'))
  await writeFile(join(dir, 'ca.pem'), 'the authority')
  await writeFile(join(dir, 'token'), 'from-a-file\n')
})
afterAll(() => rm(dir, { recursive: true, force: true }))

async function write(user: object, cluster: object = {}): Promise<string> {
  const path = join(dir, 'config')
  const config = {
    'current-context': 'a',
    contexts: [{ name: 'a', context: { cluster: 'c', user: 'u', namespace: 'n' } }],
    clusters: [{ name: 'c', cluster: { server: 'https://example.test:6443', ...cluster } }],
    users: [{ name: 'u', user }],
  }
  await writeFile(path, stringify(config))
  return path
}

test('a kubeconfig gives server, authority, certificate and namespace; files are relative to it', async () => {
  const data = (text: string) => Buffer.from(text).toString('base64')
  const kubeconfig = await write(
    { 'client-certificate-data': data('a certificate'), 'client-key-data': data('a key') },
    { 'certificate-authority': 'ca.pem', 'tls-server-name': 'other.test' },
  )
  const access = await loadAccess({ kubeconfig })
  expect(access.server.href).toBe('https://example.test:6443/')
  expect(access).toMatchObject({ namespace: 'n' })
  expect(access.tls).toEqual({
    ca: 'the authority',
    cert: 'a certificate',
    key: 'a key',
    servername: 'other.test',
  })
  expect(await access.token()).toBeUndefined()
  expect(await loadAccess({ kubeconfig, namespace: 'mine' })).toMatchObject({ namespace: 'mine' })
})

test('a token comes from the kubeconfig, from a file, or from a program', async () => {
  expect(await (await loadAccess({ kubeconfig: await write({ token: 'plain' }) })).token()).toBe('plain')
  expect(await (await loadAccess({ kubeconfig: await write({ tokenFile: 'token' }) })).token()).toBe('from-a-file')
  const status = '{"status":{"token":"\'$SUFFIX\'","expirationTimestamp":"2001-01-01T00:00:00Z"}}'
  const exec = {
    apiVersion: 'client.authentication.k8s.io/v1',
    command: 'sh',
    args: ['-c', `echo >> ${dir}/asked; printf %s '${status}'`],
    env: [{ name: 'SUFFIX', value: 'made' }],
  }
  const access = await loadAccess({ kubeconfig: await write({ exec }) })
  expect(await access.token()).toBe('made')
  // The token expires at once, so the program runs again.
  expect(await access.token()).toBe('made')
})

test('loadAccess() reports what is missing', async () => {
  await expect(loadAccess({ kubeconfig: join(dir, 'none') })).rejects.toThrow(
    'Cannot access a Kubernetes cluster: no such file',
  )
  const kubeconfig = await write({})
  await expect(loadAccess({ kubeconfig, context: 'b' })).rejects.toThrow('has no context b')
  const exec = { apiVersion: 'v1', command: 'sh', args: ['-c', 'echo not logged in >&2; exit 3'] }
  await expect(loadAccess({ kubeconfig: await write({ exec }) })).rejects.toThrow('ended with 3: not logged in')
})
