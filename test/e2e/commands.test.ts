import { execFileSync, spawn, type ChildProcess } from 'node:child_process'
import { randomBytes } from 'node:crypto'
import { once } from 'node:events'
import { existsSync } from 'node:fs'
import { mkdtemp, realpath, rm, writeFile } from 'node:fs/promises'
import { connect, createServer, type AddressInfo, type Server, type Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { createInterface } from 'node:readline'
import { text } from 'node:stream/consumers'
import { afterAll, beforeAll, describe, expect, onTestFinished, test, vi } from 'vitest'
import { stringify } from 'yaml'
import { SCRIPTED } from '../support/answer-script.ts'
import { bashAgent } from '../support/bash-agent.ts'
import { startPostgres, whyNoPostgres, type Postgres } from '../support/postgres.ts'

const main = join(import.meta.dirname, '../../src/cli/main.ts')
/** A common grace period of supervisors between SIGTERM and SIGKILL. */
const GRACE_PERIOD_MS = 10_000

let dir: string
let postgres: Postgres
beforeAll(async () => {
  dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-commands-'))
})
afterAll(async () => {
  await postgres?.[Symbol.asyncDispose]()
  await rm(dir, { recursive: true, force: true })
})

/** Starts the CLI without the Polar and CA variables of the environment that runs the tests. */
function start(words: readonly string[], more: Record<string, string> = {}): ChildProcess {
  const env = Object.fromEntries(
    Object.entries(process.env).filter(([name]) => !/^(?:POLAR_|NODE_EXTRA_CA_CERTS$)/.test(name)),
  )
  return spawn(process.execPath, [main, ...words], {
    cwd: dir,
    env: { ...env, ...more },
    stdio: ['ignore', 'pipe', 'pipe'],
  })
}

interface Ready {
  url: string
  node_id?: string
}

interface Running {
  child: ChildProcess
  ready: Ready
  log: () => string
}

async function startReady(words: readonly string[], env: Record<string, string> = {}): Promise<Running> {
  const child = start([...words, '--json'], env)
  let log = ''
  child.stderr!.setEncoding('utf8').on('data', (chunk: string) => (log += chunk))
  const line = await Promise.race([
    once(createInterface({ input: child.stdout! }), 'line') as Promise<[string]>,
    once(child, 'exit').then(([code]) => {
      throw new Error(`${words[0]} ended with ${code}: ${log}`)
    }),
  ])
  return { child, ready: JSON.parse(line[0]) as Ready, log: () => log }
}

interface Ended {
  code: number | null
  stdout: string
  stderr: string
}

async function polar(words: readonly string[], env: Record<string, string> = {}): Promise<Ended> {
  const child = start(words, env)
  onTestFinished(() => void child.kill('SIGKILL'))
  const [stdout, stderr, [code]] = await Promise.all([
    text(child.stdout!),
    text(child.stderr!),
    once(child, 'exit') as Promise<[number | null]>,
  ])
  return { code, stdout, stderr }
}

async function end({ child }: Running, signal: NodeJS.Signals): Promise<{ code: number | null; ms: number }> {
  const startedAt = performance.now()
  const exited = once(child, 'exit') as Promise<[number | null]>
  child.kill(signal)
  const [code] = await exited
  return { code, ms: performance.now() - startedAt }
}

async function waitForFile(path: string): Promise<void> {
  await vi.waitFor(() => expect(existsSync(path), path).toBe(true), { timeout: 30_000, interval: 50 })
}

/** Creates a certificate authority, and a certificate for localhost that it signed. */
function makeAuthority(name: string): { ca: string; cert: string; key: string } {
  const folder = (file: string): string => join(dir, `${name}-${file}.pem`)
  const [ca, caKey, cert, key] = [folder('ca'), folder('ca-key'), folder('cert'), folder('key')]
  const openssl = (...words: string[]): void => void execFileSync('openssl', words, { cwd: dir, stdio: 'pipe' })
  const curve = ['-newkey', 'ec', '-pkeyopt', 'ec_paramgen_curve:prime256v1', '-nodes']
  openssl('req', '-x509', ...curve, '-keyout', caKey, '-out', ca, '-days', '2', '-subj', `/CN=${name} authority`)
  const names = ['-addext', 'subjectAltName=DNS:localhost', '-subj', '/CN=localhost']
  const by = ['-CA', ca, '-CAkey', caKey, '-addext', 'basicConstraints=critical,CA:false']
  openssl('req', '-x509', ...curve, '-keyout', key, '-out', cert, '-days', '1', ...names, ...by)
  return { ca, cert, key }
}

/** TCP load balancer: forwards each connection to the first backend that accepts it, without terminating TLS. */
class LoadBalancer {
  readonly backends: number[] = []
  readonly #sockets = new Set<Socket>()
  readonly #server: Server

  constructor() {
    this.#server = createServer((socket) => this.#forward(socket, [...this.backends]))
  }

  async open(): Promise<number> {
    this.#server.listen(0, '127.0.0.1')
    await once(this.#server, 'listening')
    return (this.#server.address() as AddressInfo).port
  }

  #forward(socket: Socket, [port, ...others]: number[]): void {
    this.#sockets.add(socket)
    socket.on('error', () => {}).on('close', () => this.#sockets.delete(socket))
    if (port === undefined) return void socket.destroy()
    const backend = connect(port, '127.0.0.1')
    let isConnected = false
    backend.on('connect', () => {
      isConnected = true
      socket.pipe(backend).pipe(socket)
    })
    backend.on('error', () => (isConnected ? socket.destroy() : this.#forward(socket, others)))
    backend.on('close', () => isConnected && socket.destroy())
    socket.on('close', () => backend.destroy())
  }

  close(): void {
    this.#server.close()
    for (const socket of this.#sockets) socket.destroy()
  }
}

function toTask(id: string, body: string): object {
  return {
    task_id: id,
    instruction: 'Answer.',
    runtime: { backend: 'local' },
    agent: { harness: 'shell', custom_shell: { command: bashAgent(body) } },
    builder: { strategy: 'prefix_merging' },
    evaluator: { strategy: 'command', config: { command: 'grep -q HTTP answer.txt' } },
  }
}

function whyNot(): string | undefined {
  try {
    execFileSync('openssl', ['req', '-help'], { stdio: 'pipe' })
  } catch {
    return 'openssl is not installed: apt-get install openssl'
  }
  return whyNoPostgres()
}

const reason = whyNot()
if (reason !== undefined) test('server and node commands with TLS on PostgreSQL', (context) => context.skip(reason))
else
  describe('two servers with TLS on PostgreSQL behind a load balancer', { timeout: 120_000 }, () => {
    const balancer = new LoadBalancer()
    const running: Running[] = []
    let address: string
    let ours: ReturnType<typeof makeAuthority>
    let first: Running
    let second: Running
    let node: Running
    /** Environment variables for commands of a trainer and of a node. */
    let trainerEnv: Record<string, string>
    let nodeEnv: Record<string, string>

    const task = (...words: string[]): Promise<Ended> => polar(['task', ...words], trainerEnv)
    const startServer = async (name: string, env: Record<string, string>): Promise<Running> => {
      const words = ['server', '--config', 'site.yaml', '--port', '0', '--dir', join(dir, name)]
      const server = await startReady(words, env)
      running.push(server)
      return server
    }
    beforeAll(async () => {
      postgres = await startPostgres()
      const url = await postgres.createDatabase('site')
      ours = makeAuthority('ours')
      address = `https://localhost:${await balancer.open()}`
      const tokens = { trainer: ['trainer', 'read'], gpus: ['node'] }
      for (const name of Object.keys(tokens))
        await writeFile(join(dir, `${name}.token`), `${name}-${randomBytes(18).toString('hex')}\n`, { mode: 0o600 })
      await writeFile(join(dir, 'wrong.token'), 'this-is-none-of-its-tokens\n')
      await writeFile(join(dir, 'database.url'), url, { mode: 0o600 })
      const server = {
        host: '0.0.0.0',
        files: 'files',
        lease_seconds: 10,
        tls: { cert_file: ours.cert, key_file: ours.key },
        tokens: Object.entries(tokens).map(([name, scopes]) => ({
          name,
          scopes,
          token_file: `${name}.token`,
          ...(name === 'gpus' ? { nodes: ['gpu-*'] } : {}),
        })),
      }
      await writeFile(join(dir, 'site.yaml'), stringify({ server }))
      await writeFile(join(dir, 'bare.yaml'), stringify({ server: { ...server, tokens: [] } }))
      trainerEnv = {
        POLAR_SERVER_URL: address,
        POLAR_TOKEN_FILE: join(dir, 'trainer.token'),
        NODE_EXTRA_CA_CERTS: ours.ca,
      }
      nodeEnv = { NODE_EXTRA_CA_CERTS: ours.ca }
      // Local sandboxes share the file system with the test, so test and agent synchronize through files.
      await writeFile(join(dir, 'node.yaml'), stringify({ data: 'n', node: { allow: { runtimes: ['local'] } } }))
      first = await startServer('one', { POLAR_DATABASE_URL: url })
      second = await startServer('two', { POLAR_DATABASE_URL: url })
      balancer.backends.push(...[first, second].map(({ ready }) => Number(new URL(ready.url).port)))
      const joining = ['--server', address, '--token-file', 'gpus.token', '--id', 'gpu-1']
      node = await startReady(['node', '--config', 'node.yaml', ...SCRIPTED, ...joining], nodeEnv)
      running.push(node)
    }, 120_000)
    afterAll(() => {
      for (const { child } of running) child.kill('SIGKILL')
      balancer.close()
    })

    test('a server that is reachable from other machines does not start without tokens', async () => {
      const { code, stderr } = await polar([
        'server',
        '--config',
        'bare.yaml',
        '--port',
        '0',
        '--dir',
        join(dir, 'bare'),
      ])
      expect([code, stderr]).toEqual([
        2,
        expect.stringMatching(/^server\.host: 0\.0\.0\.0 can be reached from other machines, so it needs tokens/),
      ])
    })

    test('task submit, wait, show and ls work over TLS', async () => {
      expect(node.ready).toMatchObject({ url: address, node_id: 'gpu-1' })
      expect(first.log()).not.toContain('Warning')
      await writeFile(join(dir, 'quick.json'), JSON.stringify(toTask('quick', 'call hello > answer.txt')))
      expect(await task('submit', 'quick.json', '--samples', '2')).toMatchObject({
        code: 0,
        stdout: 'quick: submitted\n',
      })
      expect(await task('wait', 'quick')).toMatchObject({ code: 0, stdout: expect.stringMatching(/quick +completed/) })
      const shown = await task('show', 'quick')
      expect(shown.stdout).toMatch(/^Task +quick\nStatus +completed\n/)
      expect(shown.stdout).toContain('gpu-1')
      expect(await task('ls')).toMatchObject({ code: 0, stdout: expect.stringMatching(/quick +completed.* 1\.000/) })
    })

    test('task cancel ends a running task, and task wait prints its status', async () => {
      const started = join(dir, 'cancel-started')
      await writeFile(
        join(dir, 'endless.json'),
        JSON.stringify(toTask('endless', `call hello > answer.txt; touch ${started}; sleep 1000`)),
      )
      await task('submit', 'endless.json')
      await waitForFile(started)
      expect(await task('cancel', 'endless')).toMatchObject({ code: 0, stdout: expect.stringContaining('endless') })
      expect(await task('wait', 'endless')).toMatchObject({ stdout: expect.stringMatching(/endless +cancelled/) })
    })

    test('errors of tokens, node ids, certificates and URLs name the correction', async () => {
      const nodeWords = (...words: string[]) => [
        'node',
        '--server',
        address,
        '--dir',
        join(dir, 'mistaken'),
        ...SCRIPTED,
        ...words,
      ]
      const { NODE_EXTRA_CA_CERTS: _, ...untrusting } = trainerEnv
      const theirs = makeAuthority('theirs').ca
      const [trainer, unknownNode, otherNode] = await Promise.all([
        polar(['task', 'ls', '--token-file', 'wrong.token'], trainerEnv),
        polar(nodeWords('--token-file', 'wrong.token', '--id', 'gpu-2'), nodeEnv),
        polar(nodeWords('--token-file', 'gpus.token', '--id', 'cpu-1'), nodeEnv),
      ])
      for (const { code, stderr } of [trainer, unknownNode])
        expect([code, stderr]).toEqual([1, expect.stringMatching(/token is not known.*--token-file FILE/)])
      const mine = /"gpus" is only for the node gpu-\*, not for "cpu-1"; use a node id that matches/
      expect([otherNode.code, otherNode.stderr]).toEqual([1, expect.stringMatching(mine)])

      const [untrusted, wrong, suspicious, misnamed, plain] = await Promise.all([
        polar(['task', 'ls'], untrusting),
        polar(['task', 'ls'], { ...untrusting, NODE_EXTRA_CA_CERTS: theirs }),
        polar(nodeWords('--token-file', 'gpus.token', '--id', 'gpu-3')),
        polar(['task', 'ls', '--server', address.replace('localhost', '127.0.0.1')], trainerEnv),
        polar(['task', 'ls', '--server', address.replace('https', 'http')], trainerEnv),
      ])
      for (const { code, stderr } of [untrusted, wrong, suspicious]) {
        expect([code, stderr]).toEqual([3, expect.stringMatching(/NODE_EXTRA_CA_CERTS=ca\.pem.*server\.unreachable/)])
        expect(stderr).not.toContain('polar up')
      }
      expect([misnamed.code, misnamed.stderr]).toEqual([
        3,
        expect.stringMatching(/is for another host name: use that name/),
      ])
      expect([plain.code, plain.stderr]).toEqual([3, expect.stringMatching(/starts with https:\/\//)])
    })

    test('after kill -9 of one server, the node and a waiting trainer continue with the other server', async () => {
      const [started, gate] = [join(dir, 'long-started'), join(dir, 'gate')]
      const body = `call hello > answer.txt; touch ${started}; until [ -e ${gate} ]; do sleep 0.1; done`
      await writeFile(join(dir, 'long.json'), JSON.stringify(toTask('long', body)))
      await task('submit', 'long.json')
      const waiting = start(['task', 'wait', 'long', '--json'], trainerEnv)
      const output = text(waiting.stdout!)
      const waited = once(waiting, 'exit')
      await once(waiting.stderr!, 'data')
      await waitForFile(started)
      await end(first, 'SIGKILL')
      await writeFile(gate, '')
      expect(await waited).toEqual([0, null])
      expect(JSON.parse(await output)).toMatchObject({
        status: 'completed',
        valid_sessions: 1,
        refills: 0,
        mean_reward: 1,
      })
    })

    test('node and server exit with status 0 within the grace period after SIGTERM', async () => {
      for (const service of [node, second]) {
        const { code, ms } = await end(service, 'SIGTERM')
        expect(code, service.log()).toBe(0)
        expect(ms).toBeLessThan(GRACE_PERIOD_MS)
      }
      expect(await task('ls')).toMatchObject({ code: 3, stderr: expect.stringContaining('server.unreachable') })
    })
  })
