import { describe, expect, test } from 'vitest'
import { parse as parseYaml } from 'yaml'
import { dialects } from '../../../gateway/dialects/index.ts'
import type { McpServer } from '../../../model/task.ts'
import { endOf, type Harness, type HarnessLaunch, type HarnessSetup, type PackagedHarness } from './harness.ts'

export const exampleSetup: HarnessSetup = {
  sessionId: 'ses_1',
  baseUrl: 'http://127.0.0.1:4000/s/ses_1',
  key: 'sk-polar-secret',
  model: 'Qwen/Qwen3-8B',
  contextTokens: 131_072,
  images: true,
  home: '/sandbox/home',
  instructionFile: '/sandbox/home/.polar/instruction.md',
  mcpServers: [],
  hasSkills: false,
  settings: {},
}

/** One server of each transport. */
export const exampleServers: readonly McpServer[] = [
  { name: 'words', transport: 'stdio', command: 'word-server', args: ['--fast', 'a "b" \\c'] },
  { name: 'old-news', transport: 'sse', args: [], url: 'http://127.0.0.1:9/sse' },
  { name: 'news_2', transport: 'streamable-http', args: [], url: 'http://127.0.0.1:9/mcp?a=1&b=2' },
]

/** Properties of every harness preset. `setup`: fields that the preset needs besides the example. */
export function describePreset(harness: Harness, setup: Partial<HarnessSetup> = {}): void {
  const example = { ...exampleSetup, ...setup }
  const servers = exampleServers.filter(({ transport }) => harness.mcpTransports.includes(transport))
  const full = { ...example, mcpServers: servers, hasSkills: harness.skillsFolder !== undefined }

  describe(`${harness.name} as a preset`, () => {
    test('has a valid name', () => {
      expect(harness.name).toMatch(/^[a-z]+(_[a-z]+)*$/)
    })

    test('reads the gateway and the key from files or variables, and has no secret in its arguments', () => {
      const { files, env, args } = harness.configure(full)
      const given = JSON.stringify([Object.values(files), Object.values(env)])
      expect(given).toContain(example.baseUrl)
      expect(given).toContain(example.key)
      expect(given.concat(args.join(' '))).toContain(example.model)
      expect(args.join(' ')).not.toContain(example.key)
      expect(args.join(' ')).not.toContain(example.baseUrl)
    })

    test('writes only below HOME, and does not set HOME and PATH', () => {
      const { files, env } = harness.configure(full)
      for (const path of Object.keys(files)) expect(path).toMatch(/^\.[\w.-]+(\/[\w.-]+)*$/)
      for (const path of Object.keys(files)) expect(path.split('/')).not.toContain('..')
      for (const name of ['HOME', 'PATH', 'TMPDIR']) expect(Object.keys(env)).not.toContain(name)
      for (const value of Object.values(env)) expect(typeof value).toBe('string')
    })

    test('uses no paths of this machine except HOME and the given paths', () => {
      const { files, env, args } = harness.configure(full)
      const everything = [...Object.values(files), ...Object.values(env), ...args].join('\n')
      for (const folder of [process.cwd(), process.execPath, '/tmp', '/root', '/work']) {
        expect(everything).not.toContain(folder)
      }
      const moved = harness.configure({
        ...full,
        home: '/elsewhere',
        instructionFile: full.instructionFile.replace(full.home, '/elsewhere'),
      })
      expect(moved).toEqual(JSON.parse(JSON.stringify({ files, env, args }).replaceAll(full.home, '/elsewhere')))
    })

    test('writes valid files for all names of models and servers', () => {
      const model = 'a/"b"\\c\n名前'
      for (const [path, text] of Object.entries(harness.configure({ ...full, model }).files)) {
        expect(() => readConfig(path, text), path).not.toThrow()
        expect(text).not.toContain('\n名前')
      }
    })

    test('returns the same launch for the same setup, and does not change the setup', () => {
      const frozen = deepFreeze(structuredClone(full))
      expect(harness.configure(frozen)).toEqual(harness.configure(structuredClone(full)))
    })

    test('rejects unknown settings by name', () => {
      const settings = { no_such_setting: 1, neither_this: true }
      expect(() => harness.configure({ ...example, settings })).toThrow(/there is no no_such_setting, neither_this/)
      expect(() => harness.configure({ ...example, settings })).toThrow(
        expect.objectContaining({ code: 'config.invalid' }),
      )
    })

    test.each(Object.keys(harness.settings.shape))('rejects an invalid value of %s by name', (key) => {
      expect(() => harness.configure({ ...example, settings: { [key]: Symbol('wrong') } })).toThrow(
        new RegExp(`Settings of ${harness.name}: ${key}`),
      )
    })

    test.each([...harness.mcpTransports])('configures an MCP server with transport %s', (transport) => {
      const mcpServers = exampleServers.filter((server) => server.transport === transport)
      const [server] = mcpServers
      const written = textOf(harness.configure({ ...example, mcpServers }))
      expect(written).toContain(server?.name)
      expect(written).toContain(server?.command ?? server?.url)
    })

    test('rejects unsupported MCP servers by name', () => {
      const unable = exampleServers.filter(({ transport }) => !harness.mcpTransports.includes(transport))
      for (const server of unable) {
        expect(() => harness.configure({ ...example, mcpServers: [server] })).toThrow(`MCP server "${server.name}"`)
      }
      const bad = { ...exampleServers[0]!, name: 'a.b]' }
      expect(() => harness.configure({ ...example, mcpServers: [bad] })).toThrow(
        'MCP server "a.b]": a name has letters',
      )
    })

    test('maps exit codes to endings', () => {
      expect(endOf(harness, 0)).toBe('finished')
      expect(endOf(harness, 1)).toBe('gave-up')
      expect(endOf(harness, 99)).toBe('gave-up')
      expect(endOf(harness, 143)).toBe('interrupted')
    })
  })
}

/** Additional properties of harnesses that polar installs. */
export function describeHarness(harness: PackagedHarness): void {
  describePreset(harness)

  describe(`${harness.name} as an installed harness`, () => {
    test('has an exact version', () => {
      expect(harness.package.version).toMatch(/^\d+\.\d+\.\d+$/)
      expect(harness.package.name).toMatch(/^(@[\w-]+\/)?[\w-]+$/)
      for (const pin of harness.package.pins ?? []) expect(pin).toMatch(/^[\w-]+==\d+(\.\d+)+$/)
    })

    test.each(['linux-x64', 'linux-arm64', 'darwin-arm64'])('finds its program on %s inside its folder', (platform) => {
      const { kind, paths } = harness.program(platform)
      for (const path of paths) {
        expect(path).toMatch(kind === 'python' ? /^python\/bin\// : /^node_modules\/[\w@]/)
        expect(path).not.toContain('..')
        if (kind === 'native') expect(path).toContain(platform)
      }
      expect(harness.minimumNode === undefined).toBe(kind !== 'node')
    })

    test('uses a dialect of the gateway', () => {
      expect(dialects.map(({ id }) => id)).toContain(harness.dialect)
    })
  })
}

function textOf({ files, env, args }: HarnessLaunch): string {
  return [...Object.values(files), ...Object.values(env), ...args].join('\n')
}

function readConfig(path: string, text: string): unknown {
  if (path.endsWith('.json')) return JSON.parse(text)
  if (path.endsWith('.toml')) return readToml(text)
  if (path.endsWith('.yaml')) return parseYaml(text)
  return text
}

/** Parses the subset of TOML that presets write: sections, and lines with a key and a JSON value. */
export function readToml(text: string): Record<string, unknown> {
  const root: Record<string, unknown> = {}
  let table = root
  for (const line of text.split('\n').filter((entry) => entry.trim() !== '' && !entry.startsWith('#'))) {
    const [, list, section] = /^\[(\[)?([^[\]]+)\]\]?$/.exec(line) ?? []
    if (section !== undefined) {
      table = {}
      place(root, section.split('.'), list === undefined ? table : [table])
      continue
    }
    const [, key, value] = /^([\w-]+) = (.+)$/.exec(line) ?? []
    if (key === undefined || value === undefined) throw new Error(`No TOML: ${line}`)
    if (key in table) throw new Error(`Twice: ${key}`)
    table[key] = JSON.parse(value)
  }
  return root
}

function place(root: Record<string, unknown>, path: readonly string[], value: unknown): void {
  const [head = '', ...rest] = path
  if (rest.length > 0) place((root[head] ??= {}) as Record<string, unknown>, rest, value)
  else if (head in root) throw new Error(`Twice: ${head}`)
  else root[head] = value
}

function deepFreeze<T>(value: T): T {
  if (typeof value === 'object' && value !== null) for (const inner of Object.values(value)) deepFreeze(inner)
  return Object.freeze(value)
}
