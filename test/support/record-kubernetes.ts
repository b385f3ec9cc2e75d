import { setTimeout as sleep } from 'node:timers/promises'
import { loadAccess } from '../../src/node/sandbox/runtimes/kubernetes/access.ts'
import { Cluster, ClusterError } from '../../src/node/sandbox/runtimes/kubernetes/cluster.ts'
import { readMessages } from '../../src/node/sandbox/runtimes/kubernetes/frames.ts'
import { KubernetesConfig } from '../../src/node/sandbox/runtimes/kubernetes/config.ts'
import { toPod, toPolicy } from '../../src/node/sandbox/runtimes/kubernetes/manifest.ts'

/** Answers by request. Status 200 means any success; 101 an exec, with its channels as the body. */
export type KubernetesAnswers = Record<string, { status: number; body: unknown }>

type Method = 'GET' | 'POST' | 'PATCH' | 'DELETE'

/** Records the answers of a Kubernetes cluster to our calls. Creates one pod and one policy, and removes them. */
export async function recordKubernetes(kubeconfig: string, image: string): Promise<KubernetesAnswers> {
  const access = await loadAccess({ kubeconfig })
  const { namespace } = access
  await using cluster = new Cluster(access)
  const names = { name: 'polar-recording', scope: 'recording' }
  const settings = KubernetesConfig.parse({
    kind: 'kubernetes',
    pull: 'never',
    relayImage: image,
    lifetimeSeconds: 600,
  })
  const spec = {
    id: 'recording',
    workdir: '/workspace',
    env: {},
    limits: { cpus: 1, memoryMb: 128 },
    network: { kind: 'none' as const },
    mounts: [],
    labels: {},
    leaseUntil: 0,
  }
  const pods = `/api/v1/namespaces/${namespace}/pods`
  const policies = `/apis/networking.k8s.io/v1/namespaces/${namespace}/networkpolicies`
  const answers: KubernetesAnswers = {}

  async function record(title: string, method: Method, path: string, more: object = {}): Promise<unknown> {
    try {
      const body = await cluster.call(method, path, more)
      answers[title] = { status: 200, body: trim(body) }
      return body
    } catch (error) {
      if (!(error instanceof ClusterError)) throw error
      const { status, reason, message } = error
      answers[title] = { status, body: { kind: 'Status', reason, message } }
      return undefined
    }
  }

  /** Records the output of each channel of an exec, or its error. */
  async function recordExec(title: string, pod: string, command: readonly string[], container = 'sandbox') {
    const query = [
      ...command.map((word) => ['command', word] as const),
      ['container', container] as const,
      ...['stdin', 'stdout', 'stderr'].map((name) => [name, 'true'] as const),
    ]
    try {
      const socket = await cluster.upgrade(`${pods}/${pod}/exec`, query)
      const channels: Record<string, string> = {}
      for await (const { opcode, data } of readMessages(socket as AsyncIterable<Buffer>)) {
        if (opcode > 2) continue
        channels[data[0]!] = `${channels[data[0]!] ?? ''}${data.subarray(1).toString()}`
      }
      answers[title] = { status: 101, body: channels }
    } catch (error) {
      if (!(error instanceof ClusterError)) throw error
      answers[title] = { status: error.status, body: { kind: 'Status', reason: error.reason, message: error.message } }
    }
  }

  await record('version', 'GET', '/version')
  const pod = toPod(spec, image, names, settings, false)
  await record('pod create', 'POST', pods, { json: pod })
  await record('pod create again', 'POST', pods, { json: pod })
  await record('pod create invalid', 'POST', pods, { json: { ...pod, metadata: { name: 'Not_A_Name' } } })
  for (let attempt = 0; attempt < 120; attempt += 1) {
    const found = (await cluster.call('GET', `${pods}/${names.name}`)) as { status?: { phase?: string } }
    if (found.status?.phase === 'Running') break
    await sleep(500)
  }
  await record('pod running', 'GET', `${pods}/${names.name}`)
  await record('pod missing', 'GET', `${pods}/no-such-pod`)
  await record('pod list', 'GET', pods, { query: { labelSelector: 'polar-scope=recording' } })
  const annotations = { metadata: { annotations: { 'polar-record': '{"id":"recording"}' } } }
  const type = 'application/merge-patch+json'
  await record('pod patch', 'PATCH', `${pods}/${names.name}`, { json: annotations, type })
  await recordExec('exec success', names.name, ['/bin/sh', '-c', 'echo out; echo err >&2'])
  await recordExec('exec exit code', names.name, ['/bin/sh', '-c', 'exit 7'])
  await recordExec('exec no program', names.name, ['/no/such/program'])
  await recordExec('exec no pod', 'no-such-pod', ['true'])
  await recordExec('exec no container', names.name, ['true'], 'other')
  const policy = toPolicy(names, settings)
  await record('policy create', 'POST', policies, { json: policy })
  await record('policy create again', 'POST', policies, { json: policy })
  await record('policy delete', 'DELETE', `${policies}/${names.name}`)
  await record('policy delete again', 'DELETE', `${policies}/${names.name}`)
  await record('pod delete', 'DELETE', `${pods}/${names.name}`, { query: { gracePeriodSeconds: '0' } })
  await record('pod delete again', 'DELETE', `${pods}/${names.name}`, { query: { gracePeriodSeconds: '0' } })
  return answers
}

/** Removes the server's internal fields. */
function trim(body: unknown): unknown {
  return JSON.parse(JSON.stringify(body, (key, value) => (key === 'managedFields' ? undefined : (value as unknown))))
}
