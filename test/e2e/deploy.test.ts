import { spawnSync } from 'node:child_process'
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { fileURLToPath } from 'node:url'
import { afterAll, describe, expect, test } from 'vitest'
import { parse, parseAllDocuments } from 'yaml'
import { loadConfig } from '../../src/config/load-config.ts'
import { NEEDED } from '../../src/node/sandbox/runtimes/kubernetes.ts'
import { findHelm } from '../support/helm.ts'
import { pythonEnvironment } from '../support/python-environment.ts'

const root = fileURLToPath(new URL('../..', import.meta.url))
const manifests = join(root, 'deploy/kubernetes')
const chart = join(root, 'deploy/helm/polar')
const units = join(root, 'deploy/systemd')
const UNITS = ['polar-server.service', 'polar-node@.service']
const version = (JSON.parse(readFileSync(join(root, 'package.json'), 'utf8')) as { version: string }).version

/** The oldest version that the chart supports, and the newest version whose schemas are available. */
const KUBERNETES = ['1.27', '1.34']

const scratch = mkdtempSync(join(tmpdir(), 'polar-deploy-'))
afterAll(() => rmSync(scratch, { recursive: true, force: true }))

const found = await findHelm()
const helm = found.helm ?? ''
const python = pythonEnvironment('kubernetes-schemas', 'kubernetes-requirements.txt')
const noSchemas = python.install()

interface Resource {
  apiVersion: string
  kind: string
  metadata: { name: string; namespace?: string; labels?: Record<string, string> }
  [key: string]: unknown
}

function run(file: string, args: readonly string[]): { status: number | null; output: string; stdout: string } {
  const { status, stdout, stderr, error } = spawnSync(file, args, { encoding: 'utf8', cwd: scratch })
  if (error !== undefined) throw error
  return { status, stdout, output: stdout + stderr }
}

/** Returns the resources of kustomization.yaml with its image, as kustomize renders them. */
function plainResources(): Resource[] {
  const { resources, images } = parse(readFileSync(join(manifests, 'kustomization.yaml'), 'utf8')) as {
    resources: string[]
    images: [{ name: string; newName: string; newTag: string }]
  }
  expect([...resources, 'kustomization.yaml'].sort()).toEqual(readdirSync(manifests).sort())
  const [{ name, newName, newTag }] = images
  const text = resources.map((file) => readFileSync(join(manifests, file), 'utf8')).join('\n---\n')
  return toResources(text.replaceAll(`image: ${name}\n`, `image: ${newName}:${newTag}\n`))
}

function toResources(text: string): Resource[] {
  // Kubernetes reads YAML 1.1, in which 0440 is an octal number.
  const documents = parseAllDocuments(text, { version: '1.1' })
  return documents.map((document) => document.toJS() as Resource | null).filter((resource) => resource !== null)
}

function template(release: string, ...options: string[]): { status: number | null; output: string; stdout: string } {
  return run(helm, ['template', release, chart, '--namespace', 'polar', '--kube-version', '1.34.0', ...options])
}

/** Removes the labels that Helm adds, and comments and order, which have no meaning. */
function comparable(resources: readonly Resource[]): Record<string, unknown> {
  return Object.fromEntries(
    resources.map((resource) => {
      const { kind, metadata } = resource
      const labels = Object.fromEntries(
        Object.entries(metadata.labels ?? {}).filter(([key]) => !/^helm\.sh|managed-by$|\/version$/.test(key)),
      )
      const data = resource['data'] as { 'polar.yaml': string } | undefined
      return [
        `${kind} ${metadata.namespace ?? ''}/${metadata.name}`,
        { ...resource, metadata: { ...metadata, labels }, ...(data && { data: parse(data['polar.yaml']) as unknown }) },
      ]
    }),
  )
}

/** Returns the polar.yaml of every ConfigMap. */
function configsOf(resources: readonly Resource[]): string[] {
  return resources
    .filter(({ kind }) => kind === 'ConfigMap')
    .map((resource) => (resource['data'] as { 'polar.yaml': string })['polar.yaml'])
}

async function assertValidConfig(text: string): Promise<void> {
  const file = join(scratch, 'polar.yaml')
  writeFileSync(file, text)
  await loadConfig({ file, env: {} })
}

/** Asserts that the help of the command lists every flag of the command line. */
function assertKnownFlags([verb, ...args]: readonly string[]): void {
  const { stdout } = run(process.execPath, [join(root, 'src/cli/main.ts'), verb!, '--help'])
  for (const flag of args.filter((word) => word.startsWith('--'))) expect(stdout).toContain(`  ${flag} `)
}

describe('plain manifests', () => {
  test('match the schemas of Kubernetes', ({ skip }) => {
    if (noSchemas !== undefined) skip(noSchemas)
    const file = join(scratch, 'plain.yaml')
    writeFileSync(
      file,
      plainResources()
        .map((resource) => JSON.stringify(resource))
        .join('\n---\n'),
    )
    for (const kubernetes of KUBERNETES)
      expect(validate(kubernetes, file)).toEqual({ passed: plainResources().length, rejected: [] })
  })

  test('have valid configurations and commands with known flags', async () => {
    const resources = plainResources()
    const configs = configsOf(resources)
    expect(configs).toHaveLength(2)
    for (const config of configs) await assertValidConfig(config)
    const commands = JSON.stringify(resources).matchAll(/"args":(\[[^\]]*\])/g)
    for (const [, args] of commands) assertKnownFlags(JSON.parse(args!) as string[])
  })

  test('grant nodes exactly the permissions that the Kubernetes runtime needs', () => {
    const role = plainResources().find(({ kind }) => kind === 'Role')
    const rules = role?.['rules'] as { apiGroups: string[]; resources: string[]; verbs: string[] }[]
    const granted = rules.flatMap(({ apiGroups, resources, verbs }) =>
      apiGroups.flatMap((group) =>
        resources.flatMap((resource) => verbs.map((verb) => `${verb} ${group}/${resource}`)),
      ),
    )
    const needed = NEEDED.map(([verb, group, resource, part]) => `${verb} ${group}/${resource}${part && `/${part}`}`)
    expect(granted.sort()).toEqual(needed.sort())
  })

  test('have the version of package.json', () => {
    const { images } = parse(readFileSync(join(manifests, 'kustomization.yaml'), 'utf8')) as {
      images: [{ newTag: string }]
    }
    expect(images[0].newTag).toBe(version)
    expect(parse(readFileSync(join(chart, 'Chart.yaml'), 'utf8'))).toMatchObject({ version, appVersion: version })
  })
})

if ('reason' in found) test('the chart', (context) => context.skip(found.reason))
else
  describe('the chart', () => {
    test('with default values renders the plain manifests', () => {
      const { status, stdout, output } = template('polar')
      expect(output).not.toContain('Error')
      expect(status).toBe(0)
      // Helm creates the namespace of a release itself.
      const { 'Namespace /polar': _, ...plain } = comparable(plainResources())
      expect(comparable(toResources(stdout))).toEqual(plain)
    })

    test('passes helm lint --strict', () => {
      expect(run(helm, ['lint', '--strict', chart])).toMatchObject({ status: 0 })
    })

    test('with every value changed renders valid resources and configurations', async ({ skip }) => {
      if (noSchemas !== undefined) skip(noSchemas)
      const values = join(scratch, 'values.yaml')
      writeFileSync(values, OTHER_VALUES)
      const rendered = template('second', '--values', values)
      expect(rendered).toMatchObject({ status: 0 })
      const file = join(scratch, 'chart.yaml')
      writeFileSync(file, rendered.stdout)
      const resources = toResources(rendered.stdout)
      for (const kubernetes of KUBERNETES)
        expect(validate(kubernetes, file)).toEqual({ passed: resources.length, rejected: [] })
      for (const config of configsOf(resources)) await assertValidConfig(config)
      expect(configsOf(resources).join('\n')).toContain('lease_seconds: 90')
      expect(resources.map(({ metadata }) => metadata.name)).toContain('polar-second-server')
      expect(resources.filter(({ kind }) => kind === 'NetworkPolicy')).toEqual([])
    })

    test.each([
      ['server.replicas=2', 'ReadWriteMany'],
      ['nodes.namespace=polar', 'nodes.namespace must not be'],
      ['server.replica=2', 'replica'],
      ['nodes.terminationGracePeriodSeconds=60', 'terminationGracePeriodSeconds'],
      ['server.port=http', 'port'],
    ])('rejects %s', (value, message) => {
      const { status, output } = template('polar', '--set', value)
      expect(status).not.toBe(0)
      expect(output).toContain(message)
    })
  })

const OTHER_VALUES = `
image: { repository: registry.example/polar, tag: 0.2.0, pullPolicy: Always, pullSecrets: [registry] }
secrets: { database: db, tokens: tokens, nodeToken: node-token }
server:
  replicas: 2
  port: 9090
  config: { server: { lease_seconds: 90 } }
  storage: { size: 1Ti, storageClassName: nfs, accessModes: [ReadWriteMany] }
  service: { type: LoadBalancer, annotations: { example.com/internal: 'true' } }
  podAnnotations: { example.com/a: b }
  nodeSelector: { disk: ssd }
  tolerations: [{ key: rollouts, operator: Exists }]
  affinity: { podAntiAffinity: {} }
nodes:
  namespace: rollouts
  createNamespace: false
  replicas: 0
  config: { node: { labels: [gpu], runtimes: { kubernetes: { runtime_class: gvisor } } }, engine: { url: 'http://e:1' } }
  storage: { size: 10Gi, storageClassName: fast }
  podAnnotations: { example.com/a: b }
  nodeSelector: { disk: ssd }
  tolerations: [{ key: rollouts, operator: Exists }]
  affinity: { podAntiAffinity: {} }
harnesses: { install: false, storage: { storageClassName: nfs } }
networkPolicy: { enabled: false }
`

function validate(kubernetes: string, file: string): { passed: number; rejected: string[] } {
  const checked = run(python.python, ['-m', 'kubernetes_validate', '--strict', '-k', kubernetes, file])
  const lines = checked.output.trim().split('\n')
  const passed = lines.filter((line) => /^INFO .* passed /.test(line))
  return { passed: passed.length, rejected: lines.filter((line) => !passed.includes(line)) }
}

describe('systemd units', () => {
  const hasSystemd = spawnSync('which', ['systemd-analyze'], { stdio: 'ignore' }).status === 0

  test('pass systemd-analyze verify', ({ skip }) => {
    if (!hasSystemd) skip('systemd-analyze is not installed: apt-get install systemd')
    for (const name of UNITS) {
      // The path of Polar in the unit does not exist on this machine.
      const text = readFileSync(join(units, name), 'utf8').replace('/usr/local/bin/polar', '/bin/true')
      const file = join(scratch, name.replace('@', '@gpu07'))
      writeFileSync(file, text)
      expect(run('systemd-analyze', ['verify', '--man=no', file])).toMatchObject({ status: 0, output: '' })
    }
  })

  test('restrict the server to a low exposure level', ({ skip }) => {
    if (!hasSystemd) skip('systemd-analyze is not installed: apt-get install systemd')
    const file = join(units, 'polar-server.service')
    // In tenths: the exposure level is 2.0 of 10 at most.
    expect(run('systemd-analyze', ['security', '--offline=true', '--threshold=20', file])).toMatchObject({ status: 0 })
  })

  test('have a valid configuration and commands with known flags', async () => {
    await assertValidConfig(readFileSync(join(units, 'polar.yaml'), 'utf8'))
    for (const name of UNITS) {
      const [, command] = /^ExecStart=\S+ (.*)$/m.exec(readFileSync(join(units, name), 'utf8')) ?? []
      assertKnownFlags(command!.split(' '))
    }
  })
})
