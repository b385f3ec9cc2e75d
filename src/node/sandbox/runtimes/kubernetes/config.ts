import * as z from 'zod'

export const KubernetesConfig = z.strictObject({
  kind: z.literal('kubernetes'),
  kubeconfig: z
    .string()
    .optional()
    .describe("Kubeconfig of the cluster; absent: the service account of the node's pod, or ~/.kube/config"),
  context: z.string().optional().describe('Context of the kubeconfig; absent: its current context'),
  namespace: z.string().optional().describe("Namespace of pods; absent: that of the context or of the node's pod"),
  image: z.string().optional().describe('Image of tasks that name none'),
  pull: z
    .enum(['never', 'missing', 'always'])
    .default('missing')
    .describe('When a machine of the cluster pulls an image'),
  pullSecrets: z.array(z.string()).default([]).describe('Secrets of the namespace with credentials for registries'),
  user: z
    .string()
    .regex(/^(?:\d+(?::\d+)?|image)$/)
    .default('1000:1000')
    .describe("User, or user:group, of commands, as numbers; `image` for the image's user, which may be root"),
  relayImage: z
    .string()
    .default('docker.io/library/node:24-alpine')
    .describe('Image with `node` and a shell, for the container beside the sandbox that serves its socket'),
  volumes: z
    .array(
      z.strictObject({
        from: z.string().startsWith('/').describe('A folder of this machine'),
        source: z.record(z.string(), z.unknown()).describe('Volume of the cluster with the same files, as in a pod'),
        path: z.string().optional().describe('Path in the volume; absent: its root'),
      }),
    )
    .default([])
    .describe('Volumes of the cluster for folders of this machine that are mounted into sandboxes'),
  nodeSelector: z.record(z.string(), z.string()).default({}).describe('Labels of the machines that pods may run on'),
  tolerations: z.array(z.record(z.string(), z.unknown())).default([]).describe('As in the spec of a pod'),
  runtimeClass: z.string().optional().describe('Runtime class with a kernel of its own, such as gvisor or kata'),
  priorityClass: z.string().optional().describe('As in the spec of a pod'),
  serviceAccount: z
    .string()
    .optional()
    .describe('Service account for pull secrets and policies; its token is never mounted'),
  labels: z.record(z.string(), z.string()).default({}).describe('Additional labels of pods and policies'),
  owner: z
    .strictObject({ name: z.string(), uid: z.string() })
    .optional()
    .describe("The node's own pod: its pods and policies are removed with it"),
  scope: z
    .string()
    .regex(/^[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?$/)
    .optional()
    .describe(
      'Nodes with the same scope share sandboxes; absent: derived from the name of this machine and the folder',
    ),
  lifetimeSeconds: z.int().positive().default(86_400).describe('The cluster ends a pod after this time in any case'),
  startTimeoutMs: z
    .int()
    .positive()
    .default(300_000)
    .describe('Time limit for scheduling a pod and pulling its images'),
  startsPerSecond: z.number().positive().default(20).describe('Limit of pod starts per second'),
  verifyNetwork: z
    .boolean()
    .default(true)
    .describe('Whether to test that a sandbox without network has none; not all clusters enforce network policies'),
})
export type KubernetesConfig = z.infer<typeof KubernetesConfig>
