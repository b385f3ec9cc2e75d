import { mkdtemp, realpath, rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { docker } from '../../src/node/sandbox/runtimes/docker.ts'
import { describeRuntime } from '../../src/node/sandbox/runtimes/runtime.contract.ts'
import {
  PROMPTLY_MS,
  processesWith,
  runScript,
  toOrphanScript,
  toProbeSpec,
} from '../../src/node/sandbox/runtimes/sandbox-probe.contract.ts'
import type { Runtime, Sandbox, SandboxSpec } from '../../src/node/sandbox/runtimes/runtime.ts'
import { startPodman, type Podman } from '../support/podman.ts'

const podman = await startPodman()
/** Socket of a Docker engine with the same image, to run the tests on in addition. */
const ownDocker = process.env['POLAR_TEST_DOCKER_SOCKET']

if (typeof podman === 'string') {
  console.log(`docker cannot run here: ${podman}`)
  test('a container is a sandbox', (context) => context.skip(`stands for 58 tests: ${podman}`))
} else {
  afterAll(() => podman[Symbol.asyncDispose]())
  describeRoot('podman', podman)
  describeInside('podman', podman)
  describeOptions('podman', podman)
  if (ownDocker !== undefined) {
    describeRoot('docker', { ...podman, socket: ownDocker })
    describeInside('docker', { ...podman, socket: ownDocker })
    describeOptions('docker', { ...podman, socket: ownDocker })
  }
}

/** The runtime contract, where the node can enter containers from this machine. */
function describeRoot(engine: string, { socket, image }: Podman): void {
  const config = { kind: 'docker', socket, pull: 'never', startsPerSecond: 100 } as const
  describeRuntime(`docker on ${engine}`, (dir) => create(config, dir), {
    image,
    exceptions: {
      'a sandbox that uses up what the kernel counts per user leaves enough to another':
        'containers share a user of this machine unless the engine gives each a user namespace',
      'a command cannot lower its out-of-memory score':
        'an engine without CAP_SYS_RESOURCE cannot set the lowest score',
    },
    orphanScript: toOrphanScript(config, { image }),
  })
}

/** Behaviour with access to the engine's socket only: a user in the group docker, or an engine on another machine. */
function describeInside(engine: string, { socket, image }: Podman): void {
  describe(`docker on ${engine}, through its socket only`, () => {
    let dir: string
    let runtime: Runtime
    let sandbox: Sandbox
    const start = (more: Partial<SandboxSpec> = {}) =>
      runtime.start(toProbeSpec('inside', { image, ...more }), AbortSignal.timeout(30_000))

    beforeAll(async () => {
      dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-inside-'))
      runtime = create({ kind: 'docker', socket, pull: 'never', startsPerSecond: 100, reach: 'inside' }, dir)
      sandbox = await start()
    })
    afterAll(async () => {
      await sandbox.stop()
      await runtime[Symbol.asyncDispose]()
      await rm(dir, { recursive: true, force: true })
    })

    test('a command and its hidden processes end at the time limit, and other commands of the sandbox go on', async () => {
      const token = `inside-${process.pid}-hidden`
      const other = await sandbox.exec({ command: ['sh', '-c', 'echo up; read -r _'], leftovers: 'end' })
      await other.output('stdout')[Symbol.asyncIterator]().next()
      const waiting = await sandbox.exec({ command: ['sleep', '60'], leftovers: 'end' })
      const script = `(setsid env -i bash -c 'trap "" TERM HUP; while :; do sleep 0.05; done' ${token} >/dev/null 2>&1 &); trap "" TERM; while :; do sleep 0.05; done`
      const began = performance.now()
      const ran = await runScript(sandbox, script, { timeoutMs: 500 })
      expect(ran).toMatchObject({ isTimedOut: true, signal: 'SIGKILL' })
      expect(performance.now() - began).toBeLessThan(PROMPTLY_MS)
      expect(processesWith(token)).toEqual([])
      expect(await runScript(sandbox, 'pgrep -c -x sleep')).toMatchObject({ stdout: '2\n' })
      await waiting.kill()
      expect(await waiting.result).toMatchObject({ signal: 'SIGKILL' })
      expect(await other.result).toMatchObject({ exitCode: 1 })
    })

    test('kept leftovers survive their command and the end of other commands', async () => {
      await using own = await start()
      const left = `setsid bash -c 'exec >/dev/null 2>&1; while :; do sleep 0.05; done' stayer & exit 3`
      expect(await runScript(own, left, { leftovers: 'keep' })).toMatchObject({ exitCode: 3 })
      expect(await runScript(own, 'true')).toMatchObject({ exitCode: 0 })
      expect(await runScript(own, 'pgrep -f "[s]tayer" | wc -l')).toMatchObject({ stdout: '1\n' })
    })

    test('signals reach the first process, and results distinguish exit codes from signals', async () => {
      const execution = await sandbox.exec({
        command: ['bash', '-c', 'trap "exit 9" USR1; echo up; while :; do sleep 0.02; done'],
        leftovers: 'end',
      })
      await execution.output('stdout')[Symbol.asyncIterator]().next()
      await execution.signal('SIGUSR1')
      expect(await execution.result).toMatchObject({ exitCode: 9 })
      expect(await runScript(sandbox, 'exit 137')).toMatchObject({ exitCode: 137, signal: null })
      expect(await runScript(sandbox, 'kill -9 $$')).toMatchObject({ exitCode: null, signal: 'SIGKILL' })
    })

    test('a fork bomb that uses up the process limit ends only its own sandbox', async () => {
      await using own = await start({ limits: { pids: 30 } })
      const token = `inside-${process.pid}-bomb`
      const bomb = `bash -c 'b() { sleep 5 & b & }; for i in $(seq 200); do b 2>/dev/null; done; wait' ${token}`
      const ran = await runScript(own, bomb, { timeoutMs: 1000 })
      expect(ran).toMatchObject({ isTimedOut: true })
      expect(processesWith(token)).toEqual([])
      expect(await runScript(sandbox, 'echo here')).toMatchObject({ stdout: 'here\n' })
    })

    test('a forwarder process serves the sandbox socket, and no other port is reachable', async () => {
      const http = createServer((request, response) => response.end(`you asked for ${request.url}`))
      const modelSocket = { port: 18_080, accept: (incoming: Socket) => void http.emit('connection', incoming) }
      await using own = await start({ socket: modelSocket })
      const get =
        'exec 3<>/dev/tcp/127.0.0.1/18080; printf "GET /x HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n" >&3; cat <&3'
      for (const round of [1, 2])
        expect((await runScript(own, get)).stdout, String(round)).toContain('you asked for /x')
      expect(await runScript(own, 'echo > /dev/tcp/127.0.0.1/18081')).toMatchObject({ exitCode: 1 })
      http.closeAllConnections()
    })

    test('stats(), freeze() and stop() need only the engine', async () => {
      await using own = await start()
      await runScript(own, 'echo kept > file')
      expect(await own.stats()).toMatchObject({ processes: expect.any(Number), cpuMs: expect.any(Number) })
      await own.freeze()
      expect(String(await own.readFile('file', { maxBytes: 10 }))).toBe('kept\n')
    })
  })
}

function describeOptions(engine: string, { socket, image }: Podman): void {
  describe(`docker on ${engine}, with options`, () => {
    let dir: string
    const spec = (): SandboxSpec => toProbeSpec('options', { workdir: '/work/deep' })
    const open = (more: object) => create({ kind: 'docker', socket, image, pull: 'never', ...more }, dir)
    beforeAll(async () => {
      dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-options-'))
    })
    afterAll(() => rm(dir, { recursive: true, force: true }))

    test('a read-only sandbox can write to its workdir and /tmp only', async () => {
      await using runtime = open({ readOnly: true })
      await using sandbox = await runtime.start(spec(), AbortSignal.timeout(60_000))
      expect(await runScript(sandbox, 'pwd; touch here /tmp/there && echo yes')).toMatchObject({
        stdout: '/work/deep\nyes\n',
      })
      const { stdout } = await runScript(sandbox, 'grep " / " /proc/mounts')
      expect(stdout.split(' ')[3]).toMatch(/^ro,/)
      await sandbox.writeFile('sub/file', 'written')
      expect(await runScript(sandbox, 'cat sub/file; rm -r sub')).toMatchObject({ stdout: 'written', exitCode: 0 })
      expect(runtime.capabilities.supportsSnapshots).toBe(false)
    })

    test('user: image runs commands as the user of the image, without capabilities', async () => {
      await using runtime = open({ user: 'image' })
      await using sandbox = await runtime.start(spec(), AbortSignal.timeout(60_000))
      const { stdout } = await runScript(sandbox, 'id -u; echo $HOME; grep -E "^Cap(Eff|Prm|Bnd)" /proc/self/status')
      expect(stdout).toMatch(/^0\n\/root\n/)
      expect(stdout.match(/0000000000000000/g)).toHaveLength(3)
      await runScript(sandbox, 'kill -9 -1')
      expect(await runScript(sandbox, 'echo here')).toMatchObject({ stdout: 'here\n' })
    })

    test('startsPerSecond limits the starts', async () => {
      await using runtime = open({ startsPerSecond: 2 })
      const began = performance.now()
      const sandboxes = await Promise.all([1, 2, 3].map(() => runtime.start(spec(), AbortSignal.timeout(60_000))))
      expect(performance.now() - began).toBeGreaterThan(1000)
      await Promise.all(sandboxes.map((sandbox) => sandbox.stop()))
    })

    test('start() fails with runtime.image-missing for a missing image and with runtime.unsupported without an image', async () => {
      await using runtime = create({ kind: 'docker', socket, pull: 'never' }, dir)
      await expect(runtime.start(spec(), AbortSignal.timeout(60_000))).rejects.toMatchObject({
        code: 'runtime.unsupported',
      })
      const missing = { ...spec(), image: 'localhost/no-such-image' }
      await expect(runtime.start(missing, AbortSignal.timeout(60_000))).rejects.toMatchObject({
        code: 'runtime.image-missing',
      })
    })
  })
}

function create(config: object, dir: string): Runtime {
  return docker.create(docker.config.parse(config), { dir, now: Date.now })
}
