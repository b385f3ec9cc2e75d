import { createHash, randomUUID } from 'node:crypto'
import { once } from 'node:events'
import { chmodSync, mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import type { AddressInfo } from 'node:net'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { Duplex } from 'node:stream'
import { ContainerEngine, ContainerEngineError } from '../../src/node/sandbox/runtimes/docker/container-engine.ts'
import { readFrames } from '../../src/node/sandbox/runtimes/docker/frames.ts'
import { createExec, startExec } from '../../src/node/sandbox/runtimes/docker/inside.ts'
import { writePodmanProfile } from '../../src/node/sandbox/runtimes/docker/seccomp.ts'
import { encodeFrame, OPCODES, readMessages } from '../../src/node/sandbox/runtimes/kubernetes/frames.ts'
import { MarkedMessages } from '../../src/node/sandbox/linux/process/marked-messages.ts'
import type { Podman } from './podman.ts'

const WEBSOCKET = '258EAFA5-E914-47DA-95CA-C5AB0DC85B11'
const PROTOCOL = 'v4.channel.k8s.io'
const CPU_PERIOD_US = 100_000

interface Container {
  name: string
  image: string
  command: string[]
  imagePullPolicy?: string
  securityContext?: { runAsUser?: number; runAsGroup?: number; readOnlyRootFilesystem?: boolean }
  resources?: { limits?: Record<string, string> }
  volumeMounts?: { name: string; mountPath: string; readOnly?: boolean; subPath?: string }[]
}
interface PodObject {
  metadata: Record<string, unknown> & { name: string; labels?: Record<string, string> }
  spec: {
    initContainers?: Container[]
    containers: Container[]
    volumes?: ({ name: string } & Record<string, { path?: string }>)[]
  }
  status?: Record<string, unknown>
}
interface PodEntry {
  object: PodObject
  /** Folder of its volumes on this machine. */
  folder: string
  containers: Map<string, string>
  starting: Promise<void>
  isDeleted: boolean
}
interface PolicyObject {
  metadata: { name: string }
  spec: { podSelector: { matchLabels: Record<string, string> } }
}

/** The API server of a cluster with one machine. */
export interface FakeKubernetes extends AsyncDisposable {
  kubeconfig: string
  /** Names of the existing pods and policies. */
  names(): { pods: string[]; policies: string[] }
  /** The manifest as sent, with the server's additions. */
  pod(name: string): PodObject | undefined
  /** Breaks every connection of an exec, as a restarted API server would. */
  cutConnections(): number
  /** Rejects connections like an API server that is being replaced; false accepts them again. */
  setDown(isDown: boolean): void
  /** A cluster whose network ignores policies: pods can connect to this machine and the API server. */
  setKeepsPolicies(keepsPolicies: boolean): void
}

/**
 * An API server for the calls we make, in the shapes of a real one (see test/support/kubernetes-answers.json), whose pods
 * are real containers of a container engine: commands really run in them, with namespaces, limits and a separate
 * network. It does not schedule, and enforces a policy by removing the network of its pod.
 */
export async function startFakeKubernetes({ socket, image }: Podman): Promise<FakeKubernetes> {
  const dir = mkdtempSync(join(tmpdir(), 'polar-kube-'))
  const engine = new ContainerEngine(socket)
  const seccomp = await writePodmanProfile(dir)
  const pods = new Map<string, PodEntry>()
  const policies = new Map<string, PolicyObject>()
  const upgraded = new Set<Duplex>()
  const cleaning = new Set<Promise<void>>()
  let version = 100
  let isDown = false
  let keepsPolicies = true

  const server = createServer((request, response) => {
    if (isDown) return void request.socket.destroy()
    handle(request, response).catch((error: unknown) => sendStatus(response, 500, 'InternalError', String(error)))
  })
  server.on('upgrade', (request, connection: Duplex) => {
    if (isDown) return connection.destroy()
    exec(request, connection).catch(() => connection.destroy())
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const { port } = server.address() as AddressInfo
  const kubeconfig = join(dir, 'config')
  writeFileSync(
    kubeconfig,
    JSON.stringify({
      apiVersion: 'v1',
      kind: 'Config',
      'current-context': 'fake',
      contexts: [{ name: 'fake', context: { cluster: 'fake', user: 'fake', namespace: 'sandboxes' } }],
      clusters: [{ name: 'fake', cluster: { server: `http://127.0.0.1:${port}` } }],
      users: [{ name: 'fake', user: { token: 'secret-token' } }],
    }),
  )

  async function handle(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const url = new URL(request.url ?? '/', 'http://fake')
    const chunks: Buffer[] = []
    for await (const chunk of request as AsyncIterable<Buffer>) chunks.push(chunk)
    const body = chunks.length === 0 ? undefined : JSON.parse(Buffer.concat(chunks).toString())
    if (request.headers.authorization !== 'Bearer secret-token')
      return sendStatus(response, 401, 'Unauthorized', 'Unauthorized')
    if (url.pathname === '/version') return send(response, 200, { major: '1', minor: '20', gitVersion: 'v1.20.2' })
    if (url.pathname.endsWith('/selfsubjectaccessreviews'))
      return send(response, 201, { ...body, status: { allowed: true } })
    const pod = /^\/api\/v1\/namespaces\/sandboxes\/pods(?:\/([^/]+))?$/.exec(url.pathname)
    if (pod !== null) return handlePod(request.method ?? '', pod[1], url.searchParams, body, response)
    const policy = /^\/apis\/networking\.k8s\.io\/v1\/namespaces\/sandboxes\/networkpolicies(?:\/([^/]+))?$/.exec(
      url.pathname,
    )
    if (policy === null)
      return sendStatus(response, 404, 'NotFound', 'the server could not find the requested resource')
    const name: string = policy[1] ?? body.metadata.name
    if (request.method === 'POST' && policies.has(name))
      return sendStatus(response, 409, 'AlreadyExists', `networkpolicies.networking.k8s.io "${name}" already exists`)
    if (request.method === 'POST') {
      policies.set(name, body)
      return send(response, 201, toStored(body))
    }
    if (!policies.delete(name))
      return sendStatus(response, 404, 'NotFound', `networkpolicies.networking.k8s.io "${name}" not found`)
    return send(response, 200, { kind: 'Status', apiVersion: 'v1', metadata: {}, status: 'Success' })
  }

  async function handlePod(
    method: string,
    given: string | undefined,
    query: URLSearchParams,
    body: PodObject,
    response: ServerResponse,
  ): Promise<void> {
    if (method === 'GET' && given === undefined) {
      const wanted = (query.get('labelSelector') ?? '').split(',').map((pair) => pair.split('='))
      const items = [...pods.values()]
        .map(({ object }) => object)
        .filter(({ metadata }) => wanted.every(([key, value]) => metadata.labels?.[key!] === value))
      return send(response, 200, { kind: 'PodList', apiVersion: 'v1', metadata: {}, items })
    }
    if (method === 'POST') {
      const { name } = body.metadata
      if (pods.has(name)) return sendStatus(response, 409, 'AlreadyExists', `pods "${name}" already exists`)
      const object = toStored(body) as PodObject
      object.status = { phase: 'Pending', qosClass: 'BestEffort' }
      const entry: PodEntry = {
        object,
        folder: join(dir, name),
        containers: new Map(),
        starting: Promise.resolve(),
        isDeleted: false,
      }
      pods.set(name, entry)
      entry.starting = startPod(entry).catch((error: unknown) => {
        entry.object.status = toFailedStatus(entry.object, error)
      })
      return send(response, 201, object)
    }
    const entry = pods.get(given ?? '')
    if (entry === undefined) return sendStatus(response, 404, 'NotFound', `pods "${given}" not found`)
    if (method === 'PATCH') Object.assign(entry.object.metadata, merge(entry.object.metadata, body.metadata))
    if (method === 'DELETE') await deletePod(entry)
    return send(response, 200, entry.object)
  }

  async function startPod(entry: PodEntry): Promise<void> {
    const { object } = entry
    mkdirSync(entry.folder)
    for (const container of object.spec.initContainers ?? []) {
      const id = await startContainer(entry, container, 'none')
      const waited = (await engine.call('POST', `/containers/${id}/wait`)) as { StatusCode: number }
      await removeContainer(id)
      if (waited.StatusCode !== 0) throw new Error(`${container.name} ended with ${waited.StatusCode}`)
    }
    const isClosed = [...policies.values()].some(({ spec }) =>
      Object.entries(spec.podSelector.matchLabels).every(([key, value]) => object.metadata.labels?.[key] === value),
    )
    let network = isClosed ? (keepsPolicies ? 'none' : 'host') : 'bridge'
    for (const container of object.spec.containers) {
      if (entry.isDeleted) return
      const id = await startContainer(entry, container, network)
      entry.containers.set(container.name, id)
      network = `container:${id}`
    }
    const containerStatuses = object.spec.containers.map(({ name }) => ({
      name,
      ready: true,
      started: true,
      restartCount: 0,
      image,
      containerID: `fake://${entry.containers.get(name)}`,
      state: { running: { startedAt: now() } },
    }))
    object.status = { phase: 'Running', conditions: [], containerStatuses, startTime: now() }
  }

  async function startContainer(entry: PodEntry, container: Container, network: string): Promise<string> {
    const { securityContext: context, resources, volumeMounts = [] } = container
    const { cpu, memory } = resources?.limits ?? {}
    const bytes = memory === undefined ? undefined : Number.parseInt(memory, 10) * 1024 * 1024
    const isRelay = container.name === 'relay'
    const mounts = volumeMounts.map(({ name, mountPath, readOnly = false, subPath = '' }) => {
      const volume = entry.object.spec.volumes?.find((each) => each.name === name)
      const source = join(volume?.['hostPath']?.path ?? join(entry.folder, name), subPath)
      if (volume?.['hostPath'] === undefined) {
        mkdirSync(source, { recursive: true })
        chmodSync(source, 0o777)
      }
      return { Type: 'bind', Source: source, Target: mountPath, ReadOnly: readOnly }
    })
    const created = (await engine.call('POST', '/containers/create', {
      query: { name: `kube-${randomUUID()}` },
      json: {
        Image: isRelay ? image : container.image,
        Entrypoint: container.command,
        Cmd: [],
        User: context?.runAsUser === undefined ? '' : `${context.runAsUser}:${context.runAsGroup}`,
        Env: ['KUBERNETES_SERVICE_HOST=10.96.0.1', 'KUBERNETES_PORT=tcp://10.96.0.1:443'],
        StopSignal: 'SIGKILL',
        HostConfig: {
          NetworkMode: network,
          CapDrop: ['ALL'],
          SecurityOpt: ['no-new-privileges', ...(seccomp === undefined ? [] : [`seccomp=${seccomp}`])],
          ReadonlyRootfs: context?.readOnlyRootFilesystem === true,
          ...(bytes !== undefined && { Memory: bytes, MemorySwap: bytes }),
          ...(cpu !== undefined && {
            CpuPeriod: CPU_PERIOD_US,
            CpuQuota: (Number.parseInt(cpu, 10) / 1000) * CPU_PERIOD_US,
          }),
          Ulimits: [
            { Name: 'nofile', Soft: 16_384, Hard: 16_384 },
            { Name: 'nproc', Soft: 32_768, Hard: 32_768 },
          ],
          LogConfig: { Type: 'none' },
          Mounts: [
            ...mounts,
            ...(isRelay
              ? [{ Type: 'bind', Source: process.execPath, Target: '/usr/local/bin/node', ReadOnly: true }]
              : []),
          ],
        },
      },
    })) as { Id: string }
    await engine.call('POST', `/containers/${created.Id}/start`)
    return created.Id
  }

  async function removeContainer(id: string): Promise<void> {
    const query = { force: 'true', v: 'true' }
    for (let attempt = 0; attempt < 20; attempt += 1) {
      const error = await engine.call('DELETE', `/containers/${id}`, { query }).then(
        () => undefined,
        (reason: unknown) => reason,
      )
      if (error === undefined || (error instanceof ContainerEngineError && error.status === 404)) return
    }
  }

  async function deletePod(entry: PodEntry): Promise<void> {
    entry.isDeleted = true
    pods.delete(entry.object.metadata.name)
    await entry.starting
    const ids = [...entry.containers.values()]
    const query = { signal: 'SIGKILL' }
    await Promise.all(ids.map((id) => engine.call('POST', `/containers/${id}/kill`, { query }).catch(() => {})))
    // As in a real cluster, the object disappears before its containers and volumes.
    const removing = clean().finally(() => cleaning.delete(removing))
    cleaning.add(removing)
    async function clean(): Promise<void> {
      // Containers that share its network are removed first.
      for (const id of ids.toReversed()) await removeContainer(id)
      rmSync(entry.folder, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 })
    }
  }

  async function exec(request: IncomingMessage, connection: Duplex): Promise<void> {
    connection.on('error', () => connection.destroy())
    const url = new URL(request.url ?? '/', 'http://fake')
    const name = /\/pods\/([^/]+)\/exec$/.exec(url.pathname)?.[1] ?? ''
    const entry = pods.get(name)
    const container = url.searchParams.get('container') ?? ''
    const id = entry?.containers.get(container)
    if (request.headers.authorization !== 'Bearer secret-token') return refuse(connection, 401, 'Unauthorized')
    if (entry === undefined) return refuse(connection, 404, `pods "${name}" not found`)
    if (id === undefined) return refuse(connection, 400, `container ${container} is not valid for pod ${name}`)
    upgraded.add(connection)
    connection.once('close', () => upgraded.delete(connection))
    const accept = createHash('sha1').update(`${request.headers['sec-websocket-key']}${WEBSOCKET}`).digest('base64')
    connection.write(
      [
        'HTTP/1.1 101 Switching Protocols',
        'Upgrade: websocket',
        'Connection: Upgrade',
        `Sec-WebSocket-Accept: ${accept}`,
        `Sec-WebSocket-Protocol: ${PROTOCOL}`,
        '\r\n',
      ].join('\r\n'),
    )
    const write = async (channel: number, data: Uint8Array) => {
      const frame = encodeFrame(OPCODES.binary, Buffer.concat([Buffer.of(channel), data]), false)
      if (!connection.destroyed && !connection.write(frame))
        await new Promise<void>((resolve) => connection.once('drain', resolve).once('close', resolve))
    }
    // A real API server sends this first.
    await write(1, Buffer.alloc(0))
    const context = entry.object.spec.containers.find((each) => each.name === container)?.securityContext
    const user = context?.runAsUser === undefined ? '' : `${context.runAsUser}:${context.runAsGroup}`
    let end: object
    try {
      // The engine drops the exit code of a command after a second, so a shell prints it.
      const mark = new MarkedMessages(randomUUID())
      const tell = ['/bin/sh', '-c', '"$@"; printf %s "$0 $?;" >&2', mark.text]
      const execId = await createExec(engine, id, { command: [...tell, ...url.searchParams.getAll('command')], user })
      const running = await startExec(engine, execId)
      running.on('error', () => running.destroy())
      void pump(connection, running)
      for await (const { stream, data } of readFrames(running)) {
        const content = stream === 'stdout' ? data : mark.extract(data).content
        if (content.length > 0) await write(stream === 'stdout' ? 1 : 2, content)
      }
      running.destroy()
      end = toExecStatus(Number(mark.last ?? 137))
    } catch (error) {
      end = toExecStatus(error instanceof Error ? error.message : String(error))
    }
    await write(3, Buffer.from(JSON.stringify(end)))
    connection.end(encodeFrame(OPCODES.close, Buffer.from([0x03, 0xe8]), false))
  }

  return {
    kubeconfig,
    names: () => ({ pods: [...pods.keys()], policies: [...policies.keys()] }),
    pod: (name) => pods.get(name)?.object,
    cutConnections() {
      const count = upgraded.size
      for (const connection of upgraded) connection.destroy()
      return count
    },
    setDown(wanted) {
      isDown = wanted
    },
    setKeepsPolicies(wanted) {
      keepsPolicies = wanted
    },
    async [Symbol.asyncDispose]() {
      for (const connection of upgraded) connection.destroy()
      await Promise.all([...pods.values()].map(deletePod))
      await Promise.all(cleaning)
      server.closeAllConnections()
      server.close()
      await engine[Symbol.asyncDispose]()
      rmSync(dir, { recursive: true, force: true, maxRetries: 10, retryDelay: 200 })
    },
  }

  function toStored(body: object & { metadata?: object }): object {
    version += 1
    const metadata = {
      ...body.metadata,
      namespace: 'sandboxes',
      uid: randomUUID(),
      resourceVersion: String(version),
      creationTimestamp: now(),
    }
    return { ...body, metadata }
  }
}

/** Passes the client's data to the program's input, which ends when the client disconnects. */
async function pump(connection: Duplex, running: Duplex): Promise<void> {
  try {
    for await (const { opcode, data } of readMessages(connection as AsyncIterable<Buffer>)) {
      if (opcode === OPCODES.ping) connection.write(encodeFrame(OPCODES.pong, data, false))
      if (opcode === OPCODES.close) break
      if (opcode !== OPCODES.binary || data[0] !== 0 || running.destroyed) continue
      if (!running.write(Buffer.from(data.subarray(1))))
        await new Promise<void>((resolve) => running.once('drain', resolve).once('close', resolve))
    }
  } catch {
    // The connection was closed.
  }
  running.destroy()
}

function toExecStatus(outcome: number | string): object {
  if (outcome === 0) return { metadata: {}, status: 'Success' }
  if (typeof outcome === 'string')
    return { metadata: {}, status: 'Failure', message: outcome, reason: 'InternalError', code: 500 }
  return {
    metadata: {},
    status: 'Failure',
    message: `command terminated with non-zero exit code: Error executing in Docker Container: ${outcome}`,
    reason: 'NonZeroExitCode',
    details: { causes: [{ reason: 'ExitCode', message: String(outcome) }] },
  }
}

function toFailedStatus({ spec }: PodObject, error: unknown): Record<string, unknown> {
  const message = error instanceof Error ? error.message : String(error)
  const isImage = error instanceof ContainerEngineError && error.status === 404
  if (!isImage) return { phase: 'Failed', reason: 'Error', message }
  const { name, image, imagePullPolicy } = spec.containers[0]!
  const reason = imagePullPolicy === 'Never' ? 'ErrImageNeverPull' : 'ErrImagePull'
  const state = { waiting: { reason, message } }
  return { phase: 'Pending', containerStatuses: [{ name, image, ready: false, restartCount: 0, state }] }
}

function refuse(connection: Duplex, status: number, message: string): void {
  const reason = { 400: 'BadRequest', 401: 'Unauthorized', 404: 'NotFound' }[status] ?? 'InternalError'
  const body = JSON.stringify(toStatus(status, reason, message))
  connection.end(
    `HTTP/1.1 ${status} ${reason}\r\nContent-Type: application/json\r\nContent-Length: ${Buffer.byteLength(body)}\r\nConnection: close\r\n\r\n${body}`,
  )
}

function toStatus(code: number, reason: string, message: string): object {
  return { kind: 'Status', apiVersion: 'v1', metadata: {}, status: 'Failure', message, reason, code }
}

function sendStatus(response: ServerResponse, code: number, reason: string, message: string): void {
  send(response, code, toStatus(code, reason, message))
}

function send(response: ServerResponse, status: number, body: object): void {
  if (!response.headersSent) response.writeHead(status, { 'content-type': 'application/json' })
  response.end(JSON.stringify(body))
}

/** A merge patch: objects are merged, null removes, anything else replaces. */
function merge(into: Record<string, unknown>, patch: Record<string, unknown>): Record<string, unknown> {
  const result = { ...into }
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete result[key]
    else if (typeof value === 'object' && !Array.isArray(value))
      result[key] = merge((result[key] ?? {}) as Record<string, unknown>, value as Record<string, unknown>)
    else result[key] = value
  }
  return result
}

function now(): string {
  return new Date().toISOString().replace(/\.\d+Z$/, 'Z')
}
