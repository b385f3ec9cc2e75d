import { expect, test } from 'vitest'
import { geminiCli } from './gemini-cli.ts'
import { endOf } from './harness.ts'
import { describeHarness, exampleServers, exampleSetup } from './harness.contract.ts'

describeHarness(geminiCli)

test('Gemini CLI reads the login method from its settings, and uses no other host', () => {
  const { files, env, args } = geminiCli.configure(exampleSetup)
  expect(Object.keys(files)).toEqual(['.gemini/settings.json', '.gemini/policies/polar.toml'])
  expect(files['.gemini/policies/polar.toml']).toContain('toolName = "google_web_search"\ndecision = "deny"\n')
  expect(JSON.parse(files['.gemini/settings.json'] ?? '')).toEqual({
    security: { auth: { selectedType: 'gemini-api-key' } },
    privacy: { usageStatisticsEnabled: false },
    telemetry: { enabled: false },
    general: { enableAutoUpdate: false, enableAutoUpdateNotification: false },
    model: {},
    tools: {},
    mcpServers: {},
  })
  expect(env).toEqual({
    GEMINI_API_KEY: 'sk-polar-secret',
    GOOGLE_GEMINI_BASE_URL: 'http://127.0.0.1:4000/s/ses_1',
    GEMINI_TELEMETRY_ENABLED: 'false',
  })
  expect(args).toEqual(['--model', 'Qwen/Qwen3-8B', '--approval-mode=yolo', '--skip-trust'])
})

test('Gemini CLI has different exit codes for a wrong setup, a limit and giving up', () => {
  expect([1, 41, 53, 130].map((code) => endOf(geminiCli, code))).toEqual([
    'gave-up',
    'bad-setup',
    'limit-reached',
    'interrupted',
  ])
})

test('Gemini CLI reads MCP servers from a map whose keys select the transport', () => {
  const { files } = geminiCli.configure({ ...exampleSetup, mcpServers: exampleServers })
  expect(JSON.parse(files['.gemini/settings.json'] ?? '')).toMatchObject({
    mcpServers: {
      words: { command: 'word-server', args: ['--fast', 'a "b" \\c'], trust: true },
      'old-news': { url: 'http://127.0.0.1:9/sse', trust: true },
      news_2: { httpUrl: 'http://127.0.0.1:9/mcp?a=1&b=2', trust: true },
    },
  })
})

test('Gemini CLI settings become settings.json keys and flags', () => {
  const settings = {
    approval_mode: 'plan',
    max_session_turns: 9,
    exclude_tools: ['web_fetch'],
    config: { ui: { a: 1 } },
  }
  const { files, args } = geminiCli.configure({ ...exampleSetup, settings })
  expect(args).toContain('--approval-mode=plan')
  expect(JSON.parse(files['.gemini/settings.json'] ?? '')).toMatchObject({
    model: { maxSessionTurns: 9 },
    tools: { exclude: ['web_fetch'] },
    ui: { a: 1 },
  })
})
