import { execFileSync } from 'node:child_process'
import { once } from 'node:events'
import { mkdir, mkdtemp, readdir, readFile, realpath, rm, writeFile } from 'node:fs/promises'
import type { IncomingHttpHeaders } from 'node:http'
import { createServer, type Server } from 'node:https'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { Checkouts } from '../../src/node/sandbox/prepare/checkouts.ts'
import type { GitCredential } from '../../src/node/sandbox/prepare/git-access.ts'
import type { Sandbox } from '../../src/node/sandbox/runtimes/runtime.ts'

const TOKEN = 'token-of-the-configuration'
const scratch = await mkdtemp(join(await realpath(tmpdir()), 'polar-credentials-'))
const cert = join(scratch, 'cert.pem')
const key = join(scratch, 'key.pem')
const home = join(scratch, 'home')
afterAll(() => rm(scratch, { recursive: true, force: true }))

const missing = ((): string | undefined => {
  try {
    const subject = ['-subj', '/CN=127.0.0.1', '-addext', 'subjectAltName=IP:127.0.0.1,DNS:localhost']
    const made = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes', '-keyout', key, '-out', cert]
    execFileSync('openssl', ['req', '-x509', ...made, '-days', '2', ...subject], { stdio: 'pipe' })
    return undefined
  } catch {
    return 'openssl is not installed: apt-get install openssl'
  }
})()

/** Serves repositories over HTTPS as files. `/private` requires a login; `/moved` redirects to the other server. */
class GitServer implements AsyncDisposable {
  readonly received: { url: string; authorization: string | undefined }[] = []
  readonly #server: Server
  #movedTo = ''

  private constructor(server: Server) {
    this.#server = server
  }

  static async start(): Promise<GitServer> {
    const server = createServer({ cert: await readFile(cert), key: await readFile(key) })
    const started = new GitServer(server)
    server.on('request', (request, response) => {
      void started.#answer(request.url ?? '', request.headers).then(({ status, headers = {}, body = '' }) =>
        response.writeHead(status, headers).end(body),
      )
    })
    server.listen(0, '127.0.0.1')
    await once(server, 'listening')
    return started
  }

  get host(): string {
    return `127.0.0.1:${(this.#server.address() as AddressInfo).port}`
  }

  move(to: GitServer): void {
    this.#movedTo = `https://${to.host}/private`
  }

  async #answer(
    url: string,
    { authorization }: IncomingHttpHeaders,
  ): Promise<{ status: number; headers?: Record<string, string>; body?: Buffer }> {
    this.received.push({ url, authorization })
    const [, folder = '', path = ''] = /^\/(public|private|moved)\/([^?]*)/.exec(url) ?? []
    if (folder === 'moved') return { status: 301, headers: { location: url.replace('/moved', this.#movedTo) } }
    if (folder === 'private' && authorization !== basic('robot', TOKEN))
      return { status: 401, headers: { 'www-authenticate': 'Basic realm="git"' } }
    const body = await readFile(join(scratch, 'bare.git', path)).catch(() => undefined)
    return body === undefined ? { status: 404 } : { status: 200, body }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#server.closeAllConnections()
    await new Promise((closed) => this.#server.close(closed))
  }
}

function basic(user: string, password: string): string {
  return `Basic ${Buffer.from(`${user}:${password}`).toString('base64')}`
}

let commit = ''
let server: GitServer
let other: GitServer
beforeAll(async () => {
  if (missing !== undefined) return
  const bare = join(scratch, 'bare.git')
  const identity = ['-c', 'user.name=a', '-c', 'user.email=a@b', '-c', 'init.defaultBranch=main']
  const git = (...args: string[]): string => execFileSync('git', [...identity, ...args], { encoding: 'utf8' }).trim()
  git('init', '-q', join(scratch, 'work'))
  await writeFile(join(scratch, 'work', 'file'), 'text\n')
  git('-C', join(scratch, 'work'), 'add', '.')
  git('-C', join(scratch, 'work'), 'commit', '-qm', 'one')
  commit = git('-C', join(scratch, 'work'), 'rev-parse', 'HEAD')
  git('clone', '-q', '--bare', join(scratch, 'work'), bare)
  git('-C', bare, 'update-server-info')
  server = await GitServer.start()
  other = await GitServer.start()
  server.move(other)
  // Every file and program from which git could read a login that the server accepts.
  await mkdir(join(home, '.config', 'git'), { recursive: true })
  const header = `Authorization: ${basic('robot', TOKEN)}`
  const settings = `[credential]\n\thelper = "!printf 'username=robot\\\\npassword=${TOKEN}\\\\n'"\n[http]\n\textraHeader = ${header}\n`
  await writeFile(join(home, '.netrc'), `machine 127.0.0.1 login robot password ${TOKEN}\n`, { mode: 0o600 })
  await writeFile(join(home, '.gitconfig'), settings)
  await writeFile(join(home, '.config', 'git', 'config'), settings)
  await writeFile(join(home, '.git-credentials'), `https://robot:${TOKEN}@${server.host}\n`)
  await writeFile(join(home, 'askpass'), `#!/bin/sh\necho ${TOKEN}\n`, { mode: 0o755 })
})
afterAll(async () => {
  await server?.[Symbol.asyncDispose]()
  await other?.[Symbol.asyncDispose]()
})
beforeEach((context) => {
  if (missing !== undefined) return context.skip(missing)
  server.received.length = 0
  other.received.length = 0
})

/** The environment of a user whose git and SSH settings contain logins for the server. */
function ambient(): Record<string, string | undefined> {
  return {
    PATH: process.env['PATH'],
    HOME: home,
    XDG_CONFIG_HOME: join(home, '.config'),
    GIT_SSL_CAINFO: cert,
    SSH_AUTH_SOCK: join(home, 'agent.sock'),
    GIT_ASKPASS: join(home, 'askpass'),
    SSH_ASKPASS: join(home, 'askpass'),
    GIT_CONFIG_GLOBAL: join(home, '.gitconfig'),
    GIT_CONFIG_COUNT: '1',
    GIT_CONFIG_KEY_0: 'http.extraHeader',
    GIT_CONFIG_VALUE_0: `Authorization: ${basic('robot', TOKEN)}`,
  }
}

let count = 0
async function checkOut(
  repository: string,
  credentials: readonly GitCredential[],
  env: Record<string, string | undefined> = {},
): Promise<{ files: string[]; cache: string }> {
  const cache = join(scratch, `cache-${(count += 1)}`)
  const limits = { maxBytes: 1e9, maxAgeMs: 1e9 }
  const checkouts = new Checkouts({ dir: cache, limits, env: { ...ambient(), ...env }, credentials, now: Date.now })
  let files: string[] = []
  const upload = async (source: string): Promise<void> => void (files = await readdir(source))
  const sandbox = { upload } as unknown as Sandbox
  await checkouts.upload({ repository, commit, target: '/x' }, sandbox, AbortSignal.timeout(30_000))
  return { files, cache }
}

const robot = (host: string): GitCredential => ({ kind: 'token', host, user: 'robot', token: TOKEN })

describe('a checkout over HTTPS', { timeout: 60_000 }, () => {
  test('sends no credentials of the user who runs the node', async () => {
    expect((await checkOut(`https://${server.host}/public`, [])).files).toContain('file')
    const rejected = await checkOut(`https://${server.host}/private`, []).catch((error: unknown) => error)
    expect(rejected).toMatchObject({ code: 'runtime.prepare-failed' })
    expect(server.received.length).toBeGreaterThan(1)
    expect(server.received.filter(({ authorization }) => authorization !== undefined)).toEqual([])
  })

  test('sends the token configured for the host, and writes it neither to command lines nor to the cache', async () => {
    const log = join(scratch, 'commands')
    const bin = join(scratch, 'bin')
    await mkdir(bin)
    const real = execFileSync('which', ['git'], { encoding: 'utf8' }).trim()
    await writeFile(join(bin, 'git'), `#!/bin/sh\necho "$@" >> ${log}\nexec ${real} "$@"\n`, { mode: 0o755 })
    const env = { PATH: `${bin}:${process.env['PATH']}` }
    const { files, cache } = await checkOut(`https://${server.host}/private`, [robot(server.host)], env)
    expect(files).toContain('file')
    expect(new Set(server.received.map(({ authorization }) => authorization))).toEqual(
      new Set([undefined, basic('robot', TOKEN)]),
    )
    expect(await readFile(log, 'utf8')).not.toContain(TOKEN)
    for (const entry of await readdir(cache, { recursive: true, withFileTypes: true }))
      if (entry.isFile()) expect(await readFile(join(entry.parentPath, entry.name), 'latin1')).not.toContain(TOKEN)
  })

  test('sends credentials to no other host or port, even after a redirect', async () => {
    for (const credential of [robot('127.0.0.1'), robot(other.host), robot('github.com')])
      await expect(checkOut(`https://${server.host}/private`, [credential])).rejects.toThrow()
    await expect(checkOut(`https://${server.host}/moved`, [robot(server.host)])).rejects.toThrow()
    expect(other.received.length).toBeGreaterThan(0)
    const sent = [...server.received, ...other.received].filter(({ authorization }) => authorization !== undefined)
    expect(sent).toEqual([])
  })
})

describe('a checkout over SSH', { timeout: 60_000 }, () => {
  /** Creates an `ssh` program that logs its arguments and environment and then fails. */
  async function fakeSsh(): Promise<{ env: Record<string, string>; calls(): Promise<string> }> {
    const bin = join(scratch, `ssh-${(count += 1)}`)
    await mkdir(bin)
    const log = join(bin, 'log')
    await writeFile(log, '')
    await writeFile(join(bin, 'ssh'), `#!/bin/sh\nfor one; do echo "$one" >> ${log}; done\nenv >> ${log}\nexit 1\n`, {
      mode: 0o755,
    })
    return { env: { PATH: `${bin}:${process.env['PATH']}` }, calls: () => readFile(log, 'utf8') }
  }

  test('requires an SSH key configured for the host', async () => {
    const ssh = await fakeSsh()
    for (const credentials of [[], [robot('git.example')]])
      await expect(checkOut('ssh://git@git.example/team/x.git', credentials, ssh.env)).rejects.toMatchObject({
        code: 'config.invalid',
        message: expect.stringContaining('git.example'),
      })
    expect(await ssh.calls()).toBe('')
  })

  test('uses the configured key and known hosts file, and neither the SSH agent nor files of the user', async () => {
    const ssh = await fakeSsh()
    const credential = {
      kind: 'ssh',
      host: 'git.example',
      keyFile: '/keys/a b',
      knownHostsFile: '/keys/known',
    } as const
    await expect(checkOut('ssh://git@git.example/team/x.git', [credential], ssh.env)).rejects.toMatchObject({
      code: 'runtime.prepare-failed',
    })
    const lines = (await ssh.calls()).split('\n')
    for (const option of ['IdentityFile="/keys/a b"', 'UserKnownHostsFile="/keys/known"', 'IdentityAgent=none'])
      expect(lines).toContain(option)
    expect(lines).toContain('StrictHostKeyChecking=yes')
    expect(lines).toContain('HOME=/dev/null')
    expect(lines.filter((line) => /SSH_AUTH_SOCK|ASKPASS=.*home/.test(line))).toEqual([])
  })
})

test.each(['http://127.0.0.1:1/x', 'git://127.0.0.1/x', 'ext::sh -c true', 'ftp://127.0.0.1/x'])(
  'a checkout from %s is rejected before git starts',
  async (repository) => {
    await expect(checkOut(repository, [], { PATH: '/nowhere' })).rejects.toMatchObject({ code: 'config.invalid' })
  },
)
