import { expect, test } from 'vitest'
import { codex } from './codex.ts'
import { toToml } from './codex-toml.ts'
import { describeHarness, exampleServers, exampleSetup, readToml } from './harness.contract.ts'

describeHarness(codex)

const config = (setup: object = {}) =>
  readToml(codex.configure({ ...exampleSetup, ...setup }).files['.codex/config.toml'] ?? '')

test('Codex reads the gateway from its config, and uses no other host', () => {
  const { files, env, args } = codex.configure(exampleSetup)
  expect(files).toMatchInlineSnapshot(`
    {
      ".codex/config.toml": "model = "Qwen/Qwen3-8B"
    model_provider = "polar"
    model_context_window = 131072
    check_for_update_on_startup = false
    web_search = "disabled"

    [model_providers.polar]
    name = "polar"
    base_url = "http://127.0.0.1:4000/s/ses_1/v1"
    env_key = "POLAR_API_KEY"
    wire_api = "responses"

    [features]
    view_image = true
    plugins = false
    apps = false
    remote_plugin = false

    [analytics]
    enabled = false

    [feedback]
    enabled = false

    [mcp_servers]
    ",
    }
  `)
  expect(env).toEqual({ POLAR_API_KEY: 'sk-polar-secret' })
  expect(args).toEqual(['exec', '--dangerously-bypass-approvals-and-sandbox', '--skip-git-repo-check', '-'])
})

test('Codex has no image tool if the model reads only text', () => {
  expect(config({ images: false })).toMatchObject({ features: { view_image: false } })
})

test('Codex requires the MCP servers of the task, and uses them without approval', () => {
  const mcpServers = exampleServers.filter(({ transport }) => transport !== 'sse')
  const rules = { required: true, default_tools_approval_mode: 'approve' }
  expect(config({ mcpServers })['mcp_servers']).toEqual({
    words: { command: 'word-server', args: ['--fast', 'a "b" \\c'], ...rules },
    news_2: { url: 'http://127.0.0.1:9/mcp?a=1&b=2', ...rules },
  })
})

test('Codex settings become config keys and flags', () => {
  const settings = {
    reasoning_effort: 'high',
    sandbox_mode: 'workspace-write',
    features: { plugins: true, goals: false },
    json_events: true,
    config: { tools: { web: { deep: [1, 'two'] } }, hide_agent_reasoning: true },
  }
  const { args } = codex.configure({ ...exampleSetup, settings })
  expect(args).toEqual(['exec', '--sandbox', 'workspace-write', '--skip-git-repo-check', '--json', '-'])
  expect(config({ settings })).toMatchObject({
    model_reasoning_effort: 'high',
    hide_agent_reasoning: true,
    features: { plugins: true, goals: false, apps: false },
    tools: { web: { deep: [1, 'two'] } },
  })
})

test('Codex rejects additional config keys that change the provider', () => {
  const settings = { config: { model_provider: 'other', model_providers: {} } }
  expect(() => config({ settings })).toThrow(
    'config.model_provider: is set by polar, so that calls reach the gateway; config.model_providers: is set by',
  )
})

test('Codex rejects additional config that TOML cannot express', () => {
  expect(() => config({ settings: { config: { a: { b: [null] } } } })).toThrow('config: TOML has no null')
})

test('toToml() quotes keys and values where required', () => {
  const text = toToml({ plain: 'a\u007Fb', 'a b': { 'c.d': { e: [{ f: 'g' }] } }, empty: {} })
  expect(text).toBe('plain = "a\\u007fb"\n\n["a b"."c.d"]\ne = [{ f = "g" }]\n\n[empty]\n')
})
