import { createHash } from 'node:crypto'
import { hostname } from 'node:os'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import * as z from 'zod'
import { makeDirectories } from '../../../lib/fs/make-directories.ts'
import type { Plug } from '../../../lib/plug.ts'
import { parseJson } from '../../../lib/json/json-text.ts'
import { RolloutError } from '../../../model/failure.ts'
import { planSockets, proxyVariables } from '../linux/network/open-sockets.ts'
import { Records } from '../linux/records.ts'
import { StartPacer } from '../linux/start-pacer.ts'
import { loadAccess } from './kubernetes/access.ts'
import { KubernetesConfig } from './kubernetes/config.ts'
import { Cluster, ClusterError, ignoreMissing } from './kubernetes/cluster.ts'
import { runTool, type ContainerTarget } from './kubernetes/exec.ts'
import { RECORD, RELAY_CONTAINER, SANDBOX, SCOPE_LABEL, toPod, toPolicy, type PodNames } from './kubernetes/manifest.ts'
import { awaitRunning, Pod, podPath } from './kubernetes/pods.ts'
import { probe, Relay } from './kubernetes/relay.ts'
import { KubernetesSandbox } from './kubernetes/sandbox.ts'
import { prepareScript } from './kubernetes/scripts.ts'
import type {
  Runtime,
  RuntimeCapabilities,
  RuntimeCheck,
  RuntimeDeps,
  Sandbox,
  SandboxInfo,
  SandboxSpec,
} from './runtime.ts'

export const kubernetes: Plug<typeof KubernetesConfig, RuntimeDeps, Runtime> = {
  config: KubernetesConfig,
  create: (config, deps) => new KubernetesRuntime(config, deps),
}

const TOOL_MS = 60_000
/** A policy may take effect a moment after the pod has started. */
const POLICY_MS = 10_000
/** Variables of the container engine and the cluster, which the image does not set. */
const FOREIGN = /^(?:KUBERNETES_.*|HOSTNAME|TERM|PWD|OLDPWD|SHLVL|_|container)$/

const Listed = z.looseObject({ items: z.array(Pod) })
const Version = z.looseObject({ gitVersion: z.string() })
const Review = z.looseObject({ status: z.looseObject({ allowed: z.boolean() }).optional() })
const StoredInfo = z.object({ id: z.string(), leaseUntil: z.number(), labels: z.record(z.string(), z.string()) })

/** The required permissions in RBAC terms. */
export const NEEDED = [
  ['create', '', 'pods', ''],
  ['get', '', 'pods', ''],
  ['list', '', 'pods', ''],
  ['patch', '', 'pods', ''],
  ['delete', '', 'pods', ''],
  ['create', '', 'pods', 'exec'],
  ['get', '', 'pods', 'exec'],
  ['create', 'networking.k8s.io', 'networkpolicies', ''],
  ['delete', 'networking.k8s.io', 'networkpolicies', ''],
] as const

/**
 * One pod per sandbox. All data about it is stored in the cluster, so that any node with the same scope can remove it.
 */
class KubernetesRuntime implements Runtime {
  readonly kind = 'kubernetes'
  readonly capabilities: RuntimeCapabilities = {
    isolatesFiles: true,
    isolatesProcesses: true,
    networks: ['none', 'allow', 'open'],
    // The cluster ends a pod over its disk limit instead of failing its writes; processes can only be limited for whole
    // machines.
    limits: ['cpus', 'memoryMb'],
    images: 'required',
    supportsSnapshots: false,
  }
  readonly #config: KubernetesConfig
  readonly #deps: RuntimeDeps
  readonly #records: Records
  readonly #scope: string
  #connecting: Promise<Cluster> | undefined
  readonly #pacer: StartPacer

  constructor(config: KubernetesConfig, deps: RuntimeDeps) {
    this.#config = config
    this.#deps = deps
    this.#pacer = new StartPacer(config.startsPerSecond, () => deps.now())
    this.#records = new Records(deps.dir)
    this.#scope = config.scope ?? createHash('sha256').update(`${hostname()}\0${deps.dir}`).digest('hex').slice(0, 10)
  }

  async check(signal: AbortSignal): Promise<RuntimeCheck> {
    try {
      const cluster = await this.#connect()
      const { namespace, server } = cluster.access
      const { gitVersion } = Version.parse(await cluster.call('GET', '/version', { signal }))
      const refused = await this.#findRefused(cluster, signal)
      if (refused.length > 0)
        return {
          isUsable: false,
          reason: `no permission to ${refused.join(', ')} in namespace ${namespace} of ${server.host}`,
        }
      return {
        isUsable: true,
        notes: [
          `Kubernetes ${gitVersion} at ${server.host}, namespace ${namespace}`,
          'processes are not limited: set podPidsLimit of the kubelet; the cluster ends a pod over its disk limit',
          this.#config.verifyNetwork
            ? 'none and allow are network policies, which are tested for every sandbox before it is used'
            : 'none and allow are network policies, which only some cluster networks enforce; this is not tested',
        ],
      }
    } catch (error) {
      signal.throwIfAborted()
      return { isUsable: false, reason: error instanceof Error ? error.message : String(error) }
    }
  }

  async start(spec: SandboxSpec, signal: AbortSignal): Promise<Sandbox> {
    signal.throwIfAborted()
    const names = this.#namesOf(spec.id)
    const image = spec.image ?? this.#config.image
    if (image === undefined || spec.snapshot !== undefined)
      throw new RolloutError('runtime.unsupported', 'A pod needs an image: name one in the task, or set runtime.image')
    const { handlers, proxyPort } = planSockets(spec)
    const isClosed = spec.network.kind !== 'open'
    const hasRelay = handlers.size > 0 || (isClosed && this.#config.verifyNetwork)
    const pod = toPod(spec, image, names, this.#config, hasRelay)
    const cluster = await this.#connect()
    await this.#pacer.wait(signal)
    await makeDirectories(this.#deps.dir, 0o700)
    const record = await this.#records.create(spec, this.#deps.now())
    await using undo = new AsyncDisposableStack()
    undo.defer(() => this.remove(spec.id))
    const { namespace } = cluster.access
    const target: ContainerTarget = { namespace, pod: names.name, container: SANDBOX }
    try {
      // The policy is created before the pod, so that the pod never runs without it. The requests are not aborted by the
      // signal: the cluster could still execute them after the sandbox was removed.
      if (isClosed) await cluster.call('POST', policyPath(namespace), { json: toPolicy(names, this.#config) })
      signal.throwIfAborted()
      await cluster.call('POST', podPath(namespace), { json: pod })
      await awaitRunning(cluster, names.name, { timeoutMs: this.#config.startTimeoutMs, signal })
      const relayTarget = { ...target, container: RELAY_CONTAINER }
      const [env] = await Promise.all([
        this.#prepare(cluster, target, spec, signal),
        isClosed && hasRelay && this.#config.verifyNetwork ? this.#verify(cluster, relayTarget, signal) : undefined,
      ])
      const folder = this.#records.folderOf(spec.id)
      const relayDeps = { cluster, target: relayTarget, handlers, folder: join(folder, 'sockets') }
      const relay = handlers.size === 0 ? undefined : await Relay.open(relayDeps, signal)
      if (relay !== undefined) undo.use(relay)
      signal.throwIfAborted()
      undo.move()
      return new KubernetesSandbox({
        cluster,
        target,
        record,
        records: this.#records,
        folder,
        workdir: spec.workdir,
        env: {
          ...env,
          ...proxyVariables({ proxyPort }),
          ...spec.env,
        },
        socketPort: spec.socket?.port,
        closeSockets: async () => relay?.[Symbol.asyncDispose](),
        remove: () => this.remove(spec.id),
        now: () => this.#deps.now(),
      })
    } catch (cause) {
      signal.throwIfAborted()
      if (!(cause instanceof ClusterError)) throw cause
      throw new RolloutError('runtime.start-failed', `Cannot start sandbox ${spec.id}: ${cause.message}`, { cause })
    }
  }

  /** Returns the sandboxes of the cluster, and records whose pod no longer exists. */
  async list(): Promise<SandboxInfo[]> {
    const cluster = await this.#connect()
    const query = { labelSelector: `${SCOPE_LABEL}=${this.#scope}` }
    const known = await this.#records.list()
    const { items } = Listed.parse(await cluster.call('GET', podPath(cluster.access.namespace), { query }))
    const found = items.flatMap(({ metadata }): SandboxInfo[] => {
      const parsed = StoredInfo.safeParse(parseJson(metadata.annotations?.[RECORD] ?? ''))
      if (!parsed.success || metadata.deletionTimestamp !== undefined) return []
      return [{ ...parsed.data, startedAt: Date.parse(metadata.creationTimestamp ?? '') || 0 }]
    })
    return [...found, ...known.filter(({ id }) => !found.some((each) => each.id === id))]
  }

  async remove(id: string): Promise<void> {
    const { name } = this.#namesOf(id)
    const cluster = await this.#connect()
    const { namespace } = cluster.access
    const query = { gracePeriodSeconds: '0', propagationPolicy: 'Background' }
    await Promise.all([
      cluster.call('DELETE', podPath(namespace, name), { query }).catch(ignoreMissing),
      cluster.call('DELETE', `${policyPath(namespace)}/${name}`).catch(ignoreMissing),
    ])
    await this.#records.remove(id)
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const connecting = this.#connecting
    this.#connecting = undefined
    await connecting?.then(
      (cluster) => cluster[Symbol.asyncDispose](),
      () => {},
    )
  }

  #connect(): Promise<Cluster> {
    if (this.#connecting !== undefined) return this.#connecting
    const connecting = loadAccess(this.#config).then((access) => new Cluster(access))
    this.#connecting = connecting
    connecting.catch(() => (this.#connecting = undefined))
    return connecting
  }

  /** An id may have upper-case letters and be longer than the name of a pod. */
  #namesOf(id: string): PodNames {
    this.#records.folderOf(id)
    const digest = createHash('sha256').update(id).digest('hex').slice(0, 8)
    const readable = id.toLowerCase().slice(0, 24).replace(/-+$/, '')
    return { name: `polar-${this.#scope}-${readable}-${digest}`, scope: this.#scope }
  }

  async #findRefused(cluster: Cluster, signal: AbortSignal): Promise<string[]> {
    const { namespace } = cluster.access
    const reviews = NEEDED.map(async ([verb, group, resource, subresource]) => {
      const resourceAttributes = { namespace, verb, group, resource, subresource }
      const json = {
        apiVersion: 'authorization.k8s.io/v1',
        kind: 'SelfSubjectAccessReview',
        spec: { resourceAttributes },
      }
      const path = '/apis/authorization.k8s.io/v1/selfsubjectaccessreviews'
      const review = Review.parse(await cluster.call('POST', path, { json, signal }))
      return review.status?.allowed === true ? [] : [`${verb} ${resource}${subresource && `/${subresource}`}`]
    })
    return (await Promise.all(reviews)).flat()
  }

  /** Creates the workdir and reads the environment of the image, which the API does not return. */
  async #prepare(
    cluster: Cluster,
    target: ContainerTarget,
    { workdir, folders = [] }: SandboxSpec,
    signal: AbortSignal,
  ): Promise<Record<string, string>> {
    const command = ['/bin/sh', '-c', prepareScript(), 'sh', workdir, ...folders]
    const limit = AbortSignal.any([signal, AbortSignal.timeout(TOOL_MS)])
    const { exitCode, stdout, stderr } = await runTool(cluster, target, command, { signal: limit })
    if (exitCode !== 0)
      throw new RolloutError('runtime.start-failed', `The pod cannot be used: ${stderr.trim().slice(-500)}`)
    const [, , home, ...rest] = Buffer.from(stdout, 'latin1').toString().split('\n')
    const pairs = rest
      .join('\n')
      .split('\0')
      .filter((pair) => pair.includes('='))
      .map((pair) => [pair.slice(0, pair.indexOf('=')), pair.slice(pair.indexOf('=') + 1)] as const)
      .filter(([key]) => !FOREIGN.test(key))
    const path = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin'
    return { PATH: path, ...Object.fromEntries(pairs), HOME: home === undefined || home === '' ? '/' : home }
  }

  /** Tests whether the API server is reachable, which every pod can reach without a network policy. */
  async #verify(cluster: Cluster, target: ContainerTarget, signal: AbortSignal): Promise<void> {
    const { hostname: host, port, protocol } = cluster.access.server
    const addresses = [
      ['kubernetes.default.svc', '443'],
      [host, port === '' ? (protocol === 'https:' ? '443' : '80') : port],
    ] as const
    const deadline = this.#deps.now() + POLICY_MS
    for (;;) {
      const probes = addresses.map(([name, number]) =>
        runTool(cluster, target, ['node', '-e', probe(), name, number], {
          signal: AbortSignal.any([signal, AbortSignal.timeout(TOOL_MS)]),
        }),
      )
      const ended = await Promise.all(probes)
      const broken = ended.find(({ exitCode }) => exitCode !== 0 && exitCode !== 9)
      if (broken !== undefined)
        throw new RolloutError(
          'runtime.start-failed',
          `Cannot check the sandbox's network with runtime.relayImage: ${broken.stderr.trim().slice(-500)}`,
        )
      if (ended.every(({ exitCode }) => exitCode === 0)) return
      if (this.#deps.now() > deadline)
        throw new RolloutError(
          'runtime.start-failed',
          'This cluster does not enforce network policies: a pod whose policy denies all traffic reached the API server. Install a network that enforces them (Calico, Cilium), or set runtime.verifyNetwork to false if another mechanism isolates pods',
        )
      await sleep(500, undefined, { signal })
    }
  }
}

function policyPath(namespace: string): string {
  return `/apis/networking.k8s.io/v1/namespaces/${namespace}/networkpolicies`
}
