import { expect, test } from 'vitest'
import { describeHarness, exampleServers, exampleSetup } from './harness.contract.ts'
import { opencode } from './opencode.ts'

describeHarness(opencode)

test('OpenCode reads the gateway from its config, and uses no other host', () => {
  const { files, env, args } = opencode.configure(exampleSetup)
  expect(Object.keys(files)).toEqual(['.config/opencode/opencode.json', '.config/opencode/.npmrc'])
  expect(files['.config/opencode/.npmrc']).toBe('offline=true\n')
  expect(JSON.parse(files['.config/opencode/opencode.json'] ?? '')).toEqual({
    autoupdate: false,
    share: 'disabled',
    permission: 'allow',
    model: 'polar/Qwen/Qwen3-8B',
    small_model: 'polar/Qwen/Qwen3-8B',
    mcp: {},
    provider: {
      polar: {
        npm: '@ai-sdk/openai-compatible',
        name: 'polar',
        options: { baseURL: 'http://127.0.0.1:4000/s/ses_1/v1', apiKey: '{env:POLAR_API_KEY}' },
        models: {
          'Qwen/Qwen3-8B': {
            name: 'Qwen/Qwen3-8B',
            attachment: true,
            reasoning: true,
            tool_call: true,
            modalities: { input: ['text', 'image'], output: ['text'] },
            limit: { context: 131_072, output: 32_000 },
          },
        },
      },
    },
  })
  expect(env).toEqual({
    POLAR_API_KEY: 'sk-polar-secret',
    OPENCODE_DISABLE_AUTOUPDATE: '1',
    OPENCODE_DISABLE_MODELS_FETCH: '1',
    OPENCODE_DISABLE_LSP_DOWNLOAD: '1',
    OPENCODE_DISABLE_DEFAULT_PLUGINS: '1',
    OPENCODE_DISABLE_SHARE: '1',
  })
  expect(args).toEqual(['run', '--title', 'polar'])
})

test('OpenCode reads MCP servers as local or remote', () => {
  const { files } = opencode.configure({ ...exampleSetup, mcpServers: exampleServers })
  expect(JSON.parse(files['.config/opencode/opencode.json'] ?? '')).toMatchObject({
    mcp: {
      words: { type: 'local', command: ['word-server', '--fast', 'a "b" \\c'], enabled: true },
      'old-news': { type: 'remote', url: 'http://127.0.0.1:9/sse' },
      news_2: { type: 'remote', url: 'http://127.0.0.1:9/mcp?a=1&b=2' },
    },
  })
})

test('OpenCode settings become config keys and flags', () => {
  const settings = {
    steps: 12,
    variant: 'high',
    permission: { bash: 'deny' },
    tools: { grep: true, task: false },
    json_events: true,
  }
  const { files, args } = opencode.configure({ ...exampleSetup, settings })
  expect(args).toEqual(['run', '--title', 'polar', '--variant', 'high', '--format', 'json'])
  expect(JSON.parse(files['.config/opencode/opencode.json'] ?? '')).toMatchObject({
    agent: { build: { steps: 12 } },
    permission: { bash: 'deny', grep: 'allow', task: 'deny' },
  })
})
