import { mkdir, mkdtemp, rm, writeFile } from 'node:fs/promises'
import { homedir, tmpdir } from 'node:os'
import { join } from 'node:path'
import * as fc from 'fast-check'
import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { stringify } from 'yaml'
import { variableOf } from './environment.ts'
import { listFields } from './list-fields.ts'
import { loadConfig, type ConfigSources, type LoadedConfig } from './load-config.ts'

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-config-'))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

let files = 0

/** With a file of this text, in a folder of its own. */
async function load(text: string, sources: Partial<ConfigSources> = {}): Promise<LoadedConfig> {
  const cwd = join(dir, String(files++))
  await mkdir(cwd)
  await writeFile(join(cwd, 'polar.yaml'), text)
  return loadConfig({ env: {}, cwd, ...sources })
}

async function problemsOf(text: string, sources: Partial<ConfigSources> = {}): Promise<string[]> {
  try {
    await load(text, sources)
  } catch (error) {
    return (error as Error).message.split('\n')
  }
  throw new Error('nothing was wrong')
}

/** A field of each type, with values that differ from its default and from each other. */
const samples = {
  'server.host': ['10.0.0.1', '10.0.0.2', '10.0.0.3'],
  'server.port': [1001, 1002, 1003],
  'server.lease_seconds': [11.5, 12.5, 13.5],
  'server.open': [true, true, true],
  log: ['debug', 'info', 'error'],
  'node.id': ['a', 'b', 'c'],
  'node.labels': [['gpu'], ['gpu', 'big'], ['fast']],
  'node.widths.run': [7, 8, 9],
  'node.artifacts.keep': ['none', 'failures', 'all'],
  'engine.model': ['m1', 'm2', 'm3'],
  'cluster.slurm.partition': ['p1', 'p2', 'p3'],
} as const
type Path = keyof typeof samples
const paths = Object.keys(samples) as Path[]

function at(value: unknown, path: string): unknown {
  return path.split('.').reduce((inner, key) => (inner as Record<string, unknown> | undefined)?.[key], value)
}

function put(tree: Record<string, unknown>, path: string, value: unknown): void {
  const keys = path.split('.')
  const last = keys.pop()!
  let inner = tree
  for (const key of keys) inner = (inner[key] ??= {}) as Record<string, unknown>
  inner[last] = value
}

test('loadConfig() applies flag, environment, file and default in this order to every field, and records the origin', async () => {
  const { config: defaults } = await loadConfig({ env: {}, cwd: dir })
  const places = fc.record(
    Object.fromEntries(
      paths.map((path) => [path, fc.record({ flag: fc.boolean(), env: fc.boolean(), file: fc.boolean() })]),
    ),
  )
  await fc.assert(
    fc.asyncProperty(places, async (said) => {
      const tree: Record<string, unknown> = {}
      const env: Record<string, string> = {}
      const flags: { flag: string; path: string; value: string }[] = []
      for (const path of paths) {
        const [inFlag, inEnv, inFile] = samples[path]
        if (said[path]!.file) put(tree, path, inFile)
        if (said[path]!.env) env[variableOf(path)] = String(inEnv)
        if (said[path]!.flag) flags.push({ flag: path, path, value: String(inFlag) })
      }
      const { config, origins } = await load(stringify(tree), { env, flags })
      for (const path of paths) {
        const [inFlag, inEnv, inFile] = samples[path]
        const { flag, env: inEnvironment, file } = said[path]!
        const expected = flag ? inFlag : inEnvironment ? inEnv : file ? inFile : at(defaults, path)
        expect([path, at(config, path)]).toEqual([path, expected])
        const kind = flag ? 'flag' : inEnvironment ? 'environment' : file ? 'file' : undefined
        expect(origins.get(path)?.kind).toBe(kind)
        if (inEnvironment && !flag) expect(origins.get(path)).toMatchObject({ name: variableOf(path) })
      }
    }),
    { numRuns: 150 },
  )
})

describe('loadConfig() with an invalid configuration', () => {
  test('reports all problems with their lines and the expected values', async () => {
    const text = `# a site
server:
  prot: 80
  port: eighty
  lease_seconds: 0

  tokens:
    - name: slime
      scopes: [root]
      token_env: SLIME
node:
  widths: { run: 0, runn: 2 }
  labels: gpu
  runtimes:
    docker: { read_only: maybe }
engine:
  kind: vlm
`
    expect(await problemsOf(text)).toEqual([
      'polar.yaml:4: server.port: must be a whole number from 0 to 65535, not "eighty"',
      'polar.yaml:9: server.tokens.0.scopes.0: must be one of trainer, node, read, not "root"',
      'polar.yaml:5: server.lease_seconds: must be a number from 1 to 86400, not 0',
      'polar.yaml:3: server.prot: unknown key; did you mean "port"?',
      'polar.yaml:13: node.labels: must be a list, not "gpu"',
      'polar.yaml:12: node.widths.run: must be a whole number of at least 1, not 0',
      'polar.yaml:12: node.widths.runn: unknown key; did you mean "run"?',
      'polar.yaml:15: node.runtimes.docker.read_only: must be true or false, not "maybe"',
      'polar.yaml:17: engine.kind: must be one of auto, vllm, sglang, llamacpp, openai, not "vlm"',
    ])
  })

  test('names the flag or the variable that holds the value', async () => {
    const problems = await problemsOf('', {
      env: { POLAR_SERVER_OPEN: 'perhaps' },
      flags: [{ flag: 'port', path: 'server.port', value: '70000' }],
    })
    expect(problems).toEqual([
      '--port: must be a whole number from 0 to 65535, not 70000',
      'POLAR_SERVER_OPEN: must be true or false, not "perhaps"',
    ])
  })

  test.each([
    ['sever:\n  port: 1', 'polar.yaml:1: sever: unknown key; did you mean "server"?'],
    ['node:\n  harnessDir: x', 'polar.yaml:2: node.harnessDir: unknown key; did you mean "harness_dir"?'],
    ['server: 8080', 'polar.yaml:1: server: must be a section with keys of its own, not 8080'],
    ['engine:\n  url: http://x\n  script: y.yaml', 'polar.yaml:1: engine: takes only one of url, script'],
    [
      'server:\n  tokens:\n  - { name: a, scopes: [node] }',
      'polar.yaml:3: server.tokens.0: needs one of token_file, token_env',
    ],
    [
      'node:\n  checkouts:\n    credentials:\n    - { host: github.com }',
      'polar.yaml:4: node.checkouts.credentials.0: needs one of token_file, token_env, ssh_key_file',
    ],
    [
      'node:\n  checkouts:\n    credentials:\n    - { host: github.com, ssh_key_file: key }',
      'polar.yaml:4: node.checkouts.credentials.0: needs both of ssh_key_file, known_hosts_file, or neither',
    ],
    [
      'server:\n  tokens:\n  - { name: a, scopes: [read], nodes: [b], token_env: A }',
      'polar.yaml:3: server.tokens.0.nodes: needs the scope `node` in `scopes`',
    ],
    [
      'server:\n  tokens:\n  - { name: a, scopes: [node], nodes: ["gpu-[0-9]"], token_env: A }',
      /^polar\.yaml:3: server\.tokens\.0\.nodes\.0: must be a node id; `\*` matches any characters/,
    ],
    [
      'server:\n  tls: { cert_file: a }',
      'polar.yaml:2: server.tls.key_file: must be text (put quotes around it), but is missing',
    ],
    ['node:\n  id: ../x', /^polar\.yaml:2: node\.id: must /],
    ['cluster:\n  slurm:\n    time: tomorrow', /^polar\.yaml:3: cluster\.slurm\.time: must be a Slurm time, such as/],
    ['just text', 'polar.yaml: must have sections such as "server:", but has none.'],
    ['server:\n  port: 1\n  port: 2', /^polar\.yaml:3: .*unique/],
    ['server: [', /^polar\.yaml:1: /],
  ])('%j', async (text, expected) => {
    const [problem] = await problemsOf(text)
    if (typeof expected === 'string') expect(problem).toBe(expected)
    else expect(problem).toMatch(expected)
  })

  test('suggests the field for a key that differs by one letter', async () => {
    const fields = listFields().filter(({ path }) => path.split('.').at(-1)!.length > 3)
    for (const { path } of fields) {
      const keys = path.split('.')
      const last = keys.pop()!
      const wrong = [...keys, `${last.slice(0, 2)}${last.slice(3)}`].join('.')
      const tree: Record<string, unknown> = {}
      put(tree, wrong, 'x')
      const problems = (await problemsOf(stringify(tree))).filter((line) => line.includes(`${wrong}: unknown key`))
      expect(problems).toEqual([expect.stringContaining(`did you mean "${last}"?`)])
    }
  })

  test('rejects a missing file of --config, but not a missing default file', async () => {
    await expect(loadConfig({ file: 'none.yaml', env: {}, cwd: dir })).rejects.toThrow(
      /file .*none\.yaml of --config does not exist/,
    )
    await expect(loadConfig({ env: { POLAR_CONFIG: 'none.yaml' }, cwd: dir })).rejects.toThrow(
      'of POLAR_CONFIG does not exist',
    )
    expect((await loadConfig({ env: {}, cwd: dir })).file).toBeUndefined()
  })
})

test('loadConfig() ignores a section without a value', async () => {
  const { config } = await load('server:\n  # port: 1\nnode:\n  id:\n')
  expect([config.server.port, config.node.id]).toEqual([8080, undefined])
})

test('loadConfig() resolves relative paths from the folder of the file, or from the working directory for flags; ~ is HOME', async () => {
  const cwd = join(dir, 'paths')
  await mkdir(join(cwd, 'etc'), { recursive: true })
  const text =
    'data: var\nnode:\n  harness_dir: ~/h\n  allow: { paths: [shared, /abs] }\nserver:\n  tokens: [{ name: a, scopes: [node], token_file: a.token }]\n'
  await writeFile(join(cwd, 'etc/site.yaml'), text)
  const { config } = await loadConfig({
    file: 'etc/site.yaml',
    env: { POLAR_SERVER_FILES: 'files' },
    flags: [{ flag: 'script', path: 'engine.script', value: 'hello.yaml' }],
    cwd,
  })
  expect(config.data).toBe(join(cwd, 'etc/var'))
  expect(config.node.harness_dir).toBe(join(homedir(), 'h'))
  expect(config.node.allow?.paths).toEqual([join(cwd, 'etc/shared'), '/abs'])
  expect(config.server.tokens[0]?.token_file).toBe(join(cwd, 'etc/a.token'))
  expect(config.server.files).toBe(join(cwd, 'files'))
  expect(config.engine.script).toBe(join(cwd, 'hello.yaml'))
})

test('a key of higher precedence unsets its alternatives', async () => {
  const text =
    'engine: { url: http://x, key_env: OLD }\nnode: { token_env: OLD }\nserver: { database: postgres://x/y }\n'
  const { config, origins } = await load(text, {
    env: { POLAR_UPSTREAM_KEY: 'k', POLAR_TOKEN_FILE: '/t', POLAR_DATABASE_URL: 'postgres://a/b' },
    flags: [{ flag: 'script', path: 'engine.script', value: 's.yaml' }],
  })
  expect(config.engine).toMatchObject({ script: expect.stringMatching(/s\.yaml$/), key_env: 'POLAR_UPSTREAM_KEY' })
  expect(config.engine.url).toBeUndefined()
  expect([config.node.token_env, config.node.token_file]).toEqual([undefined, '/t'])
  expect([config.server.database, config.server.database_env]).toEqual([undefined, 'POLAR_DATABASE_URL'])
  expect(origins.has('engine.url')).toBe(false)
})

describe('the environment', () => {
  test('variables that Kubernetes sets for a service named polar-server are ignored', async () => {
    const { config, warnings } = await load('', {
      env: {
        POLAR_SERVER_PORT: 'tcp://10.0.0.1:8080',
        POLAR_SERVER_PORT_8080_TCP: 'tcp://10.0.0.1:8080',
        POLAR_SERVER_SERVICE_HOST: '10.0.0.1',
        POLAR_SERVER_SERVICE_PORT: '8080',
      },
    })
    expect(config.server.port).toBe(8080)
    expect(warnings).toEqual([])
  })

  test('an unknown variable with the prefix of a section causes a warning', async () => {
    const { warnings } = await load('', { env: { POLAR_NODE_WIDTH_RUN: '3', POLAR_INSTRUCTION_FILE: 'x' } })
    expect(warnings).toEqual(['POLAR_NODE_WIDTH_RUN is set but is not a setting; it is ignored.'])
  })

  test('variables are not substituted in the file', async () => {
    const { config } = await load('node: { id: home }\nengine: { model: "$HOME ${HOME}" }', { env: { HOME: '/root' } })
    expect(config.engine.model).toBe('$HOME ${HOME}')
  })

  test('each field has its own variable, except for fields of one meaning', () => {
    const names = listFields().map(({ path }) => variableOf(path))
    const twice = names.filter((name, index) => names.indexOf(name) < index)
    expect(twice).toEqual(['POLAR_SERVER_URL'])
  })
})
