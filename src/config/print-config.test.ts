import { mkdtemp, rm, writeFile } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import * as fc from 'fast-check'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { parse, stringify } from 'yaml'
import { loadConfig, type LoadedConfig } from './load-config.ts'
import { loadSecret } from './load-secret.ts'
import { printConfig, toJsonConfig } from './print-config.ts'

let dir: string
beforeAll(async () => {
  dir = await mkdtemp(join(tmpdir(), 'polar-print-'))
})
afterAll(() => rm(dir, { recursive: true, force: true }))

async function load(
  config: object,
  env: Record<string, string> = {},
  flags: { flag: string; path: string; value: string }[] = [],
): Promise<LoadedConfig> {
  await writeFile(join(dir, 'polar.yaml'), stringify(config))
  return loadConfig({ env, flags, cwd: dir })
}

/** All output for a configuration, valid or rejected. */
async function allOutput(...input: Parameters<typeof load>): Promise<string> {
  try {
    const loaded = await load(...input)
    return [
      printConfig(loaded),
      printConfig(loaded, { withOrigins: true }),
      JSON.stringify(toJsonConfig(loaded)),
      ...loaded.warnings,
    ].join('\n')
  } catch (error) {
    return (error as Error).message
  }
}

/** Does not occur in any other output. */
const secretText = fc.stringMatching(/^S3[A-Za-z0-9_-]{8,24}$/)

test('no output contains a secret, wherever the configuration has it', async () => {
  await fc.assert(
    fc.asyncProperty(fc.array(secretText, { minLength: 12, maxLength: 12 }), async (secrets) => {
      const [a, b, c, d, e, f, g, h, i, j, k, l] = secrets as [string, ...string[]] & string[]
      const fine = {
        server: {
          database: `postgres://polar:${a}@db:5432/polar?sslpassword=${b}`,
          tokens: [{ name: 'x', scopes: ['node'], token_env: 'SLIME' }],
        },
        engine: { url: `https://me:${c}@engine/v1?api_key=${d}, https://other:${e}@replica`, key_env: 'KEY' },
        node: { server: `http://u:${f}@server` },
      }
      const env = { SLIME: g!, KEY: h!, POLAR_TOKEN: i!, POLAR_UPSTREAM_KEY: j! }
      // Secrets in unknown fields and in values that the schema rejects.
      const wrong = {
        server: {
          tokens: [{ name: 'x', scopes: ['node'], token: k, token_env: `${b}+/=` }],
          database: `mysql://polar:${a}@db`,
          callbacks: { secret: l },
        },
        engine: { key: h, url: `ftp://me:${c}@engine` },
      }
      const outputs = [
        await allOutput(fine, env),
        await allOutput(fine, { ...env, POLAR_DATABASE_URL: `postgres://x:${k}@y/z` }),
        await allOutput(fine, env, [{ flag: 'database', path: 'server.database', value: `postgres://x:${l}@y/z` }]),
        await allOutput(wrong, env),
        await allOutput({}, env, [{ flag: 'database', path: 'server.database', value: `sqlite://x:${l}@y/z` }]),
      ]
      for (const output of outputs) for (const secret of secrets) expect(output).not.toContain(secret)
    }),
    { numRuns: 60 },
  )
})

test('printConfig() prints a file that loads as the same configuration', async () => {
  const first = await load({
    server: { port: 9, quotas: { slime: { max_queued_sessions: 5 } } },
    node: { labels: ['gpu'] },
  })
  const second = await load(parse(printConfig(first, { withOrigins: true })) as object)
  expect(second.config).toEqual(first.config)
})

test('printConfig() prints the origin of each value', async () => {
  const loaded = await load({ server: { host: 'localhost' }, node: { labels: ['gpu'] } }, { POLAR_NODE_ID: 'n1' }, [
    { flag: 'port', path: 'server.port', value: '7' },
  ])
  const text = printConfig(loaded, { withOrigins: true })
  expect(text).toContain('  host: localhost # polar.yaml:2\n')
  expect(text).toContain('  port: 7 # --port\n')
  expect(text).toContain('  id: n1 # POLAR_NODE_ID\n')
  expect(text).toContain('  labels: [gpu] # polar.yaml:4\n')
  expect(text).toContain('  lease_seconds: 60 # default\n')
})

test('loadSecret() reads a file or a variable, and names the missing source', async () => {
  const file = join(dir, 'a.token')
  await writeFile(file, '  s3cret\n')
  expect(await loadSecret('x', { file, env: undefined }, {})).toBe('s3cret')
  expect(await loadSecret('x', { file: undefined, env: 'A' }, { A: 's3cret' })).toBe('s3cret')
  expect(await loadSecret('x', { file: undefined, env: undefined }, {})).toBeUndefined()
  await expect(loadSecret('node.token', { file: undefined, env: 'A' }, {})).rejects.toThrow(
    'node.token_env: the environment variable A is not set',
  )
  await expect(loadSecret('node.token', { file: join(dir, 'no'), env: undefined }, {})).rejects.toThrow(
    'node.token_file:',
  )
  await writeFile(file, '\n')
  await expect(loadSecret('node.token', { file, env: undefined }, {})).rejects.toThrow('is empty')
})
