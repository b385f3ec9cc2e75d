import { mkdtemp, readFile, realpath, rm } from 'node:fs/promises'
import { createServer } from 'node:http'
import type { Socket } from 'node:net'
import { tmpdir } from 'node:os'
import { dirname, join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { kubernetes } from '../../src/node/sandbox/runtimes/kubernetes.ts'
import { Pod } from '../../src/node/sandbox/runtimes/kubernetes/pods.ts'
import { describeRuntime } from '../../src/node/sandbox/runtimes/runtime.contract.ts'
import type { ExecSpec, Runtime, Sandbox, SandboxSpec } from '../../src/node/sandbox/runtimes/runtime.ts'
import { startFakeKubernetes, type FakeKubernetes } from '../support/fake-kubernetes.ts'
import { startPodman } from '../support/podman.ts'
import { recordKubernetes, type KubernetesAnswers } from '../support/record-kubernetes.ts'

const source = fileURLToPath(new URL('../../src/node/sandbox/runtimes/kubernetes.ts', import.meta.url))
const podman = await startPodman()
/** Runtime config as JSON, to run the contract in addition on a real cluster whose pods run on this machine. */
const ownCluster = process.env['POLAR_TEST_KUBERNETES']

if (typeof podman === 'string') {
  console.log(`pods cannot run here: ${podman}`)
  test('a pod is a sandbox', (context) => context.skip(podman))
} else {
  const fake = await startFakeKubernetes(podman)
  afterAll(async () => {
    await fake[Symbol.asyncDispose]()
    await podman[Symbol.asyncDispose]()
  })
  const { image } = podman
  const toConfig = (dir: string) => ({
    kind: 'kubernetes' as const,
    kubeconfig: fake.kubeconfig,
    pull: 'never' as const,
    startsPerSecond: 100,
    scope: 'contract',
    volumes: [{ from: dirname(dir), source: { hostPath: { path: dirname(dir) } } }],
  })
  describeContract('kubernetes', toConfig, image)
  if (ownCluster !== undefined) {
    const given = JSON.parse(ownCluster) as { image: string }
    describeContract('a real kubernetes', (dir) => ({ ...toConfig(dir), ...given }), given.image)
  }
  describeCluster(fake, image)
}

function describeContract(name: string, toConfig: (dir: string) => object, image: string): void {
  describeRuntime(name, (dir) => kubernetes.create(kubernetes.config.parse(toConfig(dir)), { dir, now: Date.now }), {
    image,
    exceptions: {
      'a command is the first choice of the out-of-memory killer': 'the kubelet sets the score, by class of service',
      'a command cannot lower its out-of-memory score': 'the kubelet sets the score, by class of service',
      'a sandbox that uses up what the kernel counts per user leaves enough to another':
        'pods share a user of their machine unless the cluster gives each a user namespace',
    },
    orphanScript: `
const [script, dir, id] = process.argv.slice(1)
const { kubernetes } = await import(${JSON.stringify(source)})
const config = ${JSON.stringify(toConfig('/nowhere'))}
const runtime = kubernetes.create(kubernetes.config.parse(config), { dir, now: Date.now })
const spec = { id, image: '${image}', workdir: '/workspace', env: {}, limits: {}, network: { kind: 'none' }, mounts: [], labels: {}, leaseUntil: 0 }
const sandbox = await runtime.start(spec, AbortSignal.timeout(30000))
const execution = await sandbox.exec({ command: ['bash', '-c', script], leftovers: 'keep' })
for await (const _ of execution.output('stdout')) console.log('up')
`,
  })
}

/** Behaviour specific to a cluster: broken connections, API objects, and the manifest of the pod. */
function describeCluster(fake: FakeKubernetes, image: string): void {
  describe('kubernetes, cluster behaviour', () => {
    let dir: string
    let runtime: Runtime
    let sandbox: Sandbox
    let count = 0
    const create = (more: object = {}) => {
      const config = { kind: 'kubernetes', kubeconfig: fake.kubeconfig, pull: 'never', startsPerSecond: 100, ...more }
      return kubernetes.create(kubernetes.config.parse(config), { dir, now: Date.now })
    }
    const toSpec = (more: Partial<SandboxSpec> = {}): SandboxSpec => ({
      id: `Cluster-${process.pid}-${(count += 1)}`,
      image,
      workdir: '/workspace',
      env: {},
      limits: {},
      network: { kind: 'none' },
      mounts: [],
      labels: { session: 's-1' },
      leaseUntil: Date.now() + 600_000,
      ...more,
    })
    beforeAll(async () => {
      dir = await mkdtemp(join(await realpath(tmpdir()), 'polar-cluster-'))
      runtime = create()
      sandbox = await runtime.start(toSpec(), AbortSignal.timeout(60_000))
    })
    afterAll(async () => {
      await sandbox.stop()
      await runtime[Symbol.asyncDispose]()
      await rm(dir, { recursive: true, force: true })
    })

    test('a command survives a broken connection, and its output is neither lost nor repeated', async () => {
      await run(sandbox, 'mkfifo gate')
      const script = 'echo before; echo e1 >&2; read -r _ < gate; seq 1 20000; echo e2 >&2; exit 5'
      const execution = await sandbox.exec({ command: ['bash', '-c', script], leftovers: 'end', timeoutMs: 60_000 })
      const output = execution.output('stdout')[Symbol.asyncIterator]()
      expect(String((await output.next()).value)).toBe('before\n')
      expect(fake.cutConnections()).toBeGreaterThan(0)
      await run(sandbox, 'echo > gate')
      expect(await execution.result).toMatchObject({ exitCode: 5, signal: null, isTimedOut: false })
      const lines = Array.from({ length: 20_000 }, (_, index) => `${index + 1}\n`).join('')
      expect(await text(execution.output('stdout'))).toBe(`before\n${lines}`)
      expect(await text(execution.output('stderr'))).toBe('e1\ne2\n')
    })

    test('a command whose connection broke ends at its time limit, with all its processes', async () => {
      const script = '(setsid bash -c "while :; do sleep 0.05; done" hidden &) ; echo up; while :; do sleep 0.05; done'
      const execution = await sandbox.exec({ command: ['bash', '-c', script], leftovers: 'end', timeoutMs: 3000 })
      await execution.output('stdout')[Symbol.asyncIterator]().next()
      fake.cutConnections()
      expect(await execution.result).toMatchObject({ isTimedOut: true, signal: 'SIGKILL' })
      expect(await run(sandbox, 'pgrep -fc "[h]idden"')).toMatchObject({ stdout: '0\n' })
    })

    test('a temporary outage of the API server ends no command', async () => {
      await run(sandbox, 'mkfifo later')
      const execution = await sandbox.exec({
        command: ['bash', '-c', 'echo up; read -r _ < later; echo done'],
        leftovers: 'end',
      })
      await execution.output('stdout')[Symbol.asyncIterator]().next()
      fake.setDown(true)
      fake.cutConnections()
      await new Promise((resolve) => setTimeout(resolve, 1500))
      fake.setDown(false)
      await run(sandbox, 'echo > later')
      expect(await execution.result).toMatchObject({ exitCode: 0 })
      expect(await text(execution.output('stdout'))).toBe('up\ndone\n')
    })

    test('a command that kills its parent process counts as ended', async () => {
      expect(await run(sandbox, 'kill -9 $PPID; sleep 60', { timeoutMs: 30_000 })).toMatchObject({
        isTimedOut: false,
        signal: 'SIGKILL',
      })
      expect(await run(sandbox, 'kill -9 -1; sleep 60', { timeoutMs: 30_000 })).toMatchObject({ isTimedOut: false })
      expect(await run(sandbox, 'echo here')).toMatchObject({ stdout: 'here\n' })
    })

    test('the sandbox socket works again after its connection broke', async () => {
      const http = createServer((request, response) => response.end(`you asked for ${request.url}`))
      const socket = { port: 18_080, accept: (incoming: Socket) => void http.emit('connection', incoming) }
      await using own = await runtime.start(toSpec({ socket }), AbortSignal.timeout(60_000))
      const get =
        'for i in $(seq 50); do exec 3<>/dev/tcp/127.0.0.1/18080 && break; sleep 0.2; done 2>/dev/null; printf "GET /x HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n" >&3; cat <&3'
      expect((await run(own, get)).stdout).toContain('you asked for /x')
      fake.cutConnections()
      await expect.poll(async () => (await run(own, get)).stdout, { timeout: 30_000 }).toContain('you asked for /x')
      http.closeAllConnections()
    })

    test('the pod has the fewest possible privileges and an owner reference', async () => {
      const owner = { name: 'polar-node-0', uid: '5f0d0a6e-0000-4000-8000-000000000000' }
      const more = { nodeSelector: { pool: 'sandboxes' }, runtimeClass: 'gvisor', pullSecrets: ['registry'], owner }
      await using own = create(more)
      const limits = { cpus: 0.5, memoryMb: 256, diskMb: 100 }
      await using started = await own.start(toSpec({ limits }), AbortSignal.timeout(60_000))
      const name = fake.names().pods.find((each) => each.includes(started.id.toLowerCase()))!
      const pod = fake.pod(name)!
      expect(pod.spec).toMatchObject({
        restartPolicy: 'Never',
        automountServiceAccountToken: false,
        enableServiceLinks: false,
        activeDeadlineSeconds: 86_400,
        nodeSelector: { pool: 'sandboxes' },
        runtimeClassName: 'gvisor',
        imagePullSecrets: [{ name: 'registry' }],
        securityContext: { seccompProfile: { type: 'RuntimeDefault' } },
      })
      expect(pod.spec).not.toHaveProperty('hostNetwork')
      expect(pod.metadata).toMatchObject({ ownerReferences: [{ kind: 'Pod', ...owner }] })
      for (const container of pod.spec.containers)
        expect(container.securityContext).toMatchObject({
          allowPrivilegeEscalation: false,
          privileged: false,
          runAsNonRoot: true,
          capabilities: { drop: ['ALL'] },
        })
      expect(pod.spec.containers[0]!.resources).toEqual({
        limits: { cpu: '500m', memory: '256Mi', 'ephemeral-storage': '100Mi' },
      })
      expect(fake.names().policies).toContain(name)
      await started.stop()
      expect(fake.names().pods).not.toContain(name)
      expect(fake.names().policies).not.toContain(name)
    })

    test('the fake API server returns the recorded answers of a real API server', async () => {
      const recorded = JSON.parse(
        await readFile(new URL('../support/kubernetes-answers.json', import.meta.url), 'utf8'),
      ) as KubernetesAnswers
      const answers = await recordKubernetes(fake.kubeconfig, image)
      expect(Object.keys(answers)).toEqual(Object.keys(recorded))
      for (const [title, { status, body }] of Object.entries(recorded)) {
        // The fake does not validate manifests, and its engine reports a missing program with another message.
        if (title === 'pod create invalid' || title === 'exec no program') continue
        expect(answers[title]?.status, title).toBe(status)
        if (status >= 400 || (status === 101 && title !== 'exec success'))
          expect(answers[title]?.body, title).toEqual(body)
        if (title === 'exec success') expect(answers[title]?.body).toEqual(body)
        if (title === 'pod running') {
          expect(Pod.parse(answers[title]?.body).status).toMatchObject({ phase: 'Running' })
          expect(Pod.parse(body).status).toMatchObject({ phase: 'Running' })
        }
      }
    })

    test('start() fails on a cluster that does not enforce network policies', async () => {
      fake.setKeepsPolicies(false)
      try {
        await expect(runtime.start(toSpec(), AbortSignal.timeout(60_000))).rejects.toThrow(
          'does not enforce network policies',
        )
      } finally {
        fake.setKeepsPolicies(true)
      }
    })

    test('a missing image, a mount outside the volumes and a missing cluster are reported differently', async () => {
      const start = (more: Partial<SandboxSpec>) => runtime.start(toSpec(more), AbortSignal.timeout(60_000))
      await expect(start({ image: 'localhost/no-such' })).rejects.toMatchObject({ code: 'runtime.image-missing' })
      const mounts = [{ source: '/nowhere', target: '/x', isReadOnly: true }]
      await expect(start({ mounts })).rejects.toMatchObject({ code: 'runtime.unsupported' })
      await using other = create({ kubeconfig: join(dir, 'none') })
      expect(await other.check(AbortSignal.timeout(5000))).toMatchObject({ isUsable: false })
    })
  })
}

async function run(sandbox: Sandbox, script: string, more: Partial<ExecSpec> = {}) {
  const execution = await sandbox.exec({
    command: ['bash', '-c', script],
    leftovers: 'end',
    timeoutMs: 30_000,
    ...more,
  })
  const stdout = await text(execution.output('stdout'))
  return { ...(await execution.result), stdout }
}

async function text(chunks: AsyncIterable<Buffer>): Promise<string> {
  const all: Buffer[] = []
  for await (const chunk of chunks) all.push(chunk)
  return Buffer.concat(all).toString()
}
