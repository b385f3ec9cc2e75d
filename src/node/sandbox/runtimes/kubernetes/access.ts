import { readFile } from 'node:fs/promises'
import { homedir } from 'node:os'
import { dirname, join, resolve } from 'node:path'
import { parse } from 'yaml'
import * as z from 'zod'
import { describeError } from '../../../../lib/fs/errno.ts'
import { runProgram } from '../../../../lib/process/run-program.ts'
import { RolloutError } from '../../../../model/failure.ts'

/** Folder of a pod's credentials for its cluster. */
const SERVICE_ACCOUNT = '/var/run/secrets/kubernetes.io/serviceaccount'
const IN_CLUSTER = 'https://kubernetes.default.svc'
/** Token files are replaced well before they expire; they are read again after this time. */
const TOKEN_MS = 60_000
/** Search path for credential plugins; the kubeconfig names their other variables. */
const PLUGIN_PATH = '/usr/local/bin:/usr/bin:/bin'
/** A token with an expiry time is replaced this long before. */
const EARLY_MS = 60_000

/** Address of the API server and our credentials. */
export interface ClusterAccess {
  server: URL
  tls: { ca?: string; cert?: string; key?: string; servername?: string; rejectUnauthorized?: false }
  namespace: string
  /** Returns the bearer token; undefined if a certificate authenticates us. */
  token(): Promise<string | undefined>
}

export interface ClusterAccessOptions {
  kubeconfig?: string | undefined
  context?: string | undefined
  namespace?: string | undefined
}

const Named = <Shape extends z.ZodRawShape>(key: string, shape: Shape) =>
  z.array(z.looseObject({ name: z.string(), [key]: z.looseObject(shape) }))
const text = z.string().optional()
const ExecPlugin = z.looseObject({
  apiVersion: z.string(),
  command: z.string(),
  args: z.array(z.string()).nullish(),
  env: z.array(z.looseObject({ name: z.string(), value: z.string() })).nullish(),
})
type ExecPlugin = z.infer<typeof ExecPlugin>
const ClusterEntry = z.looseObject({
  server: z.url(),
  'certificate-authority': text,
  'certificate-authority-data': text,
  'insecure-skip-tls-verify': z.boolean().optional(),
  'tls-server-name': text,
})
const User = z.looseObject({
  token: text,
  tokenFile: text,
  'client-certificate': text,
  'client-certificate-data': text,
  'client-key': text,
  'client-key-data': text,
  exec: ExecPlugin.nullish(),
})
const Context = z.looseObject({ cluster: z.string(), user: z.string(), namespace: text })
const Kubeconfig = z.looseObject({
  'current-context': text,
  clusters: Named('cluster', {}),
  users: Named('user', {}),
  contexts: Named('context', {}),
})
const Credential = z.looseObject({
  status: z.looseObject({
    token: text,
    clientCertificateData: text,
    clientKeyData: text,
    expirationTimestamp: text,
  }),
})

/** Loads the configured kubeconfig, else the service account of our pod, else the user's kubeconfig. */
export async function loadAccess(options: ClusterAccessOptions): Promise<ClusterAccess> {
  try {
    if (options.kubeconfig === undefined) {
      const inside = await loadServiceAccount(SERVICE_ACCOUNT)
      if (inside !== undefined) return { ...inside, namespace: options.namespace ?? inside.namespace }
    }
    return await loadKubeconfig(options.kubeconfig ?? join(homedir(), '.kube', 'config'), options)
  } catch (cause) {
    if (cause instanceof RolloutError) throw cause
    throw unavailable(describeError(cause), cause)
  }
}

async function loadServiceAccount(folder: string): Promise<ClusterAccess | undefined> {
  const ca = await readFile(join(folder, 'ca.crt'), 'utf8').catch(() => undefined)
  if (ca === undefined) return undefined
  return {
    server: new URL(IN_CLUSTER),
    tls: { ca },
    namespace: (await readFile(join(folder, 'namespace'), 'utf8')).trim(),
    token: cached(async () => ({ value: await readFile(join(folder, 'token'), 'utf8'), until: Date.now() + TOKEN_MS })),
  }
}

async function loadKubeconfig(path: string, options: ClusterAccessOptions): Promise<ClusterAccess> {
  const config = Kubeconfig.parse(parse(await readFile(path, 'utf8')))
  const name = options.context ?? config['current-context']
  if (name === undefined) throw unavailable(`${path} has no current context; set runtime.context`)
  const context = Context.parse(find(config.contexts, name, 'context', path))
  const cluster = ClusterEntry.parse(find(config.clusters, context.cluster, 'cluster', path))
  const user = User.parse(find(config.users, context.user, 'user', path))
  /** Reads inline base64 data or a file that is named relative to the kubeconfig. */
  const load = async (data: string | undefined, file: string | undefined) => {
    if (data !== undefined) return Buffer.from(data, 'base64').toString()
    return file === undefined ? undefined : readFile(resolve(dirname(path), file), 'utf8')
  }
  const ca = await load(cluster['certificate-authority-data'], cluster['certificate-authority'])
  const plugin = user.exec == null ? undefined : await startPlugin(user.exec)
  const cert = plugin?.cert ?? (await load(user['client-certificate-data'], user['client-certificate']))
  const key = plugin?.key ?? (await load(user['client-key-data'], user['client-key']))
  const { tokenFile } = user
  const fromFile = async () => ({
    value: await readFile(resolve(dirname(path), tokenFile!), 'utf8'),
    until: Date.now() + TOKEN_MS,
  })
  return {
    server: new URL(cluster.server),
    tls: {
      ...(ca !== undefined && { ca }),
      ...(cert !== undefined && { cert }),
      ...(key !== undefined && { key }),
      ...(cluster['tls-server-name'] !== undefined && { servername: cluster['tls-server-name'] }),
      ...(cluster['insecure-skip-tls-verify'] === true && { rejectUnauthorized: false as const }),
    },
    namespace: options.namespace ?? context.namespace ?? 'default',
    token: plugin?.token ?? (tokenFile === undefined ? async () => user.token : cached(fromFile)),
  }
}

function find(list: readonly Record<string, unknown>[], name: string, kind: string, path: string): unknown {
  const found = list.find((each) => each['name'] === name)
  if (found === undefined) throw unavailable(`${path} has no ${kind} ${name}`)
  return found[kind]
}

/** Runs a credential plugin, as clouds provide them. Its certificate is used until this process ends. */
async function startPlugin(plugin: ExecPlugin) {
  const load = async () => Credential.parse(JSON.parse(await runPlugin(plugin))).status
  const first = await load()
  let held: typeof first | undefined = first
  const token = cached(async () => {
    const status = held ?? (await load())
    held = undefined
    const until = status.expirationTimestamp === undefined ? Infinity : Date.parse(status.expirationTimestamp)
    return { value: status.token, until: until - EARLY_MS }
  })
  return { token, cert: first.clientCertificateData, key: first.clientKeyData }
}

async function runPlugin({ apiVersion, command, args, env }: ExecPlugin): Promise<string> {
  const info = { apiVersion, kind: 'ExecCredential', spec: { interactive: false } }
  const own = Object.fromEntries((env ?? []).map(({ name, value }) => [name, value]))
  const { exitCode, stdout, stderr } = await runProgram([command, ...(args ?? [])], {
    env: { PATH: PLUGIN_PATH, HOME: homedir(), ...own, KUBERNETES_EXEC_INFO: JSON.stringify(info) },
  })
  if (exitCode === 0) return stdout
  throw unavailable(`${command} of the kubeconfig ended with ${exitCode}: ${stderr.trim().slice(-500)}`)
}

interface Fresh {
  value: string | undefined
  /** Unix milliseconds. */
  until: number
}

function cached(load: () => Promise<Fresh>): () => Promise<string | undefined> {
  let current: Promise<Fresh> | undefined
  return async () => {
    let fresh = await current?.catch(() => undefined)
    if (fresh === undefined || fresh.until <= Date.now()) {
      current = load()
      fresh = await current
    }
    return fresh.value?.trim()
  }
}

function unavailable(reason: string, cause?: unknown): RolloutError {
  return new RolloutError('runtime.unavailable', `Cannot access a Kubernetes cluster: ${reason}`, { cause })
}
