import { isAbsolute, join, relative } from 'node:path/posix'
import { RolloutError } from '../../../../model/failure.ts'
import type { Mount, SandboxSpec } from '../runtime.ts'
import type { KubernetesConfig } from './config.ts'
import { INIT, STATE } from './scripts.ts'

export const SANDBOX = 'sandbox'
export const RELAY_CONTAINER = 'relay'
export const SCOPE_LABEL = 'polar-scope'
const NAME_LABEL = 'polar-sandbox'
/** Annotation with the data of `list`, as JSON. */
export const RECORD = 'polar-record'

/** Neither root nor a user of commands. */
const RELAY_USER = 65_534
const SEED = `${STATE}-seed`

export interface PodNames {
  name: string
  scope: string
}

/** Returns one pod for one sandbox: without privilege escalation, and without access to the API server. */
export function toPod(
  spec: SandboxSpec,
  image: string,
  { name, scope }: PodNames,
  settings: KubernetesConfig,
  hasRelay: boolean,
): object {
  const [uid, gid] = settings.user === 'image' ? [] : settings.user.split(':').map(Number)
  const pullPolicy = { never: 'Never', missing: 'IfNotPresent', always: 'Always' }[settings.pull]
  const confined = { allowPrivilegeEscalation: false, privileged: false, capabilities: { drop: ['ALL'] } }
  const asUser = {
    ...confined,
    ...(uid !== undefined && { runAsUser: uid, runAsGroup: gid ?? uid, runAsNonRoot: uid !== 0 }),
  }
  const { cpus, memoryMb, diskMb } = spec.limits
  const limits = {
    cpu: cpus === undefined ? undefined : `${Math.round(cpus * 1000)}m`,
    memory: memoryMb === undefined ? undefined : `${memoryMb}Mi`,
    'ephemeral-storage': diskMb === undefined ? undefined : `${diskMb}Mi`,
  }
  const mapped = spec.mounts.map((mount, index) => toVolume(mount, index, settings))
  // A user other than the image's cannot write to the image's workdir, so it gets a copy.
  const hasWorkVolume = uid !== undefined && uid !== 0
  // A command cannot remove a volume, so the workdir has no volume of its own if a folder above it has one.
  const top = spec.folders?.[0]
  const isWorkBelowTop = top !== undefined && `${spec.workdir}/`.startsWith(`${top}/`)
  const work = isWorkBelowTop ? 'folders' : 'work'
  const seedTarget = isWorkBelowTop ? join(SEED, relative(top, spec.workdir)) : SEED
  const mounts = [
    { name: 'state', mountPath: STATE },
    ...(top === undefined ? [] : [{ name: 'folders', mountPath: top }]),
    ...(hasWorkVolume && !isWorkBelowTop ? [{ name: 'work', mountPath: spec.workdir }] : []),
    ...mapped.map(({ mount }) => mount),
  ]
  const seed = 'if [ -d "$1" ]; then mkdir -p -- "$2" && cp -a -- "$1/." "$2/"; fi; true'
  return {
    apiVersion: 'v1',
    kind: 'Pod',
    metadata: {
      name,
      labels: toLabels({ name, scope }, settings),
      annotations: { [RECORD]: toRecord(spec) },
      ownerReferences: ownersOf(settings),
    },
    spec: {
      restartPolicy: 'Never',
      automountServiceAccountToken: false,
      enableServiceLinks: false,
      terminationGracePeriodSeconds: 0,
      activeDeadlineSeconds: settings.lifetimeSeconds,
      hostname: 'sandbox',
      securityContext: { seccompProfile: { type: 'RuntimeDefault' } },
      nodeSelector: settings.nodeSelector,
      tolerations: settings.tolerations,
      imagePullSecrets: settings.pullSecrets.map((secret) => ({ name: secret })),
      runtimeClassName: settings.runtimeClass,
      priorityClassName: settings.priorityClass,
      serviceAccountName: settings.serviceAccount,
      initContainers: hasWorkVolume
        ? [
            {
              name: 'seed',
              image,
              imagePullPolicy: pullPolicy,
              command: ['/bin/sh', '-c', seed, 'sh', spec.workdir, seedTarget],
              securityContext: asUser,
              resources: { limits },
              volumeMounts: [{ name: work, mountPath: SEED }],
            },
          ]
        : [],
      containers: [
        {
          name: SANDBOX,
          image,
          imagePullPolicy: pullPolicy,
          command: ['/bin/sh', '-c', INIT],
          securityContext: asUser,
          resources: { limits },
          volumeMounts: mounts,
        },
        ...(hasRelay
          ? [
              {
                name: RELAY_CONTAINER,
                image: settings.relayImage,
                imagePullPolicy: pullPolicy === 'Always' ? 'IfNotPresent' : pullPolicy,
                command: ['/bin/sh', '-c', INIT],
                securityContext: {
                  ...confined,
                  runAsUser: RELAY_USER,
                  runAsGroup: RELAY_USER,
                  runAsNonRoot: true,
                  readOnlyRootFilesystem: true,
                },
                resources: { requests: { cpu: '10m', memory: '64Mi' }, limits: { memory: '256Mi' } },
              },
            ]
          : []),
      ],
      volumes: [
        { name: 'state', emptyDir: {} },
        ...(top === undefined ? [] : [{ name: 'folders', emptyDir: {} }]),
        ...(hasWorkVolume && !isWorkBelowTop ? [{ name: 'work', emptyDir: {} }] : []),
        ...mapped.map(({ volume }) => volume),
      ],
    },
  }
}

/** Denies all traffic, including DNS. Hosts of `allow` are reached through the node. */
export function toPolicy({ name, scope }: PodNames, settings: KubernetesConfig): object {
  return {
    apiVersion: 'networking.k8s.io/v1',
    kind: 'NetworkPolicy',
    metadata: {
      name,
      labels: toLabels({ name, scope }, settings),
      ownerReferences: ownersOf(settings),
    },
    spec: {
      podSelector: { matchLabels: { [NAME_LABEL]: name } },
      policyTypes: ['Ingress', 'Egress'],
      ingress: [],
      egress: [],
    },
  }
}

export function toRecord({ id, labels, leaseUntil }: Pick<SandboxSpec, 'id' | 'labels' | 'leaseUntil'>): string {
  return JSON.stringify({ id, labels, leaseUntil })
}

function toLabels({ name, scope }: PodNames, { labels }: KubernetesConfig): Record<string, string> {
  return { ...labels, 'app.kubernetes.io/managed-by': 'polar', [SCOPE_LABEL]: scope, [NAME_LABEL]: name }
}

function ownersOf({ owner }: KubernetesConfig): object[] | undefined {
  return owner === undefined ? undefined : [{ apiVersion: 'v1', kind: 'Pod', ...owner, blockOwnerDeletion: false }]
}

function toVolume(
  { source, target, isReadOnly }: Mount,
  index: number,
  { volumes }: KubernetesConfig,
): { volume: object; mount: object } {
  const found = volumes.find(({ from }) => source === from || source.startsWith(`${from.replace(/\/$/, '')}/`))
  if (found === undefined || !isAbsolute(source))
    throw new RolloutError(
      'runtime.unsupported',
      `${source} is a folder of this machine, which pods cannot access; put it into a volume and name the volume in runtime.volumes`,
    )
  const name = `mount-${index}`
  const subPath = join(found.path ?? '', relative(found.from, source))
  const isRoot = subPath === '' || subPath === '.'
  return {
    volume: { name, ...found.source },
    mount: { name, mountPath: target, readOnly: isReadOnly, subPath: isRoot ? undefined : subPath },
  }
}
