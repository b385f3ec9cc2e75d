import { expect, test } from 'vitest'
import { endOf } from './harness.ts'
import { describeHarness, exampleServers, exampleSetup } from './harness.contract.ts'
import { qwenCode } from './qwen-code.ts'

describeHarness(qwenCode)

test('Qwen Code reads the gateway from its settings, and uses no other host', () => {
  const { files, env, args } = qwenCode.configure(exampleSetup)
  expect(Object.keys(files)).toEqual(['.qwen/settings.json'])
  expect(JSON.parse(files['.qwen/settings.json'] ?? '')).toEqual({
    privacy: { usageStatisticsEnabled: false },
    telemetry: { enabled: false },
    general: { enableAutoUpdate: false },
    memory: { enableManagedAutoMemory: false, enableManagedAutoDream: false, enableAutoSkill: false },
    security: { auth: { selectedType: 'openai' } },
    model: { name: 'Qwen/Qwen3-8B' },
    modelProviders: {
      openai: [
        {
          id: 'Qwen/Qwen3-8B',
          name: 'polar',
          envKey: 'POLAR_API_KEY',
          baseUrl: 'http://127.0.0.1:4000/s/ses_1/v1',
          generationConfig: {
            contextWindowSize: 131_072,
            modalities: { image: true },
          },
        },
      ],
    },
    mcpServers: {},
  })
  expect(env).toEqual({
    POLAR_API_KEY: 'sk-polar-secret',
    QWEN_USAGE_STATISTICS_ENABLED: '0',
    QWEN_CODE_SUPPRESS_YOLO_WARNING: '1',
  })
  expect(args).toEqual(['--approval-mode=yolo'])
})

test('Qwen Code has different exit codes for a wrong setup, a limit and giving up', () => {
  expect([1, 41, 53, 55, 130].map((code) => endOf(qwenCode, code))).toEqual([
    'gave-up',
    'bad-setup',
    'limit-reached',
    'limit-reached',
    'interrupted',
  ])
})

test('Qwen Code reads MCP servers from a map whose keys select the transport', () => {
  const { files } = qwenCode.configure({ ...exampleSetup, mcpServers: exampleServers })
  expect(JSON.parse(files['.qwen/settings.json'] ?? '')).toMatchObject({
    mcpServers: {
      words: { command: 'word-server', args: ['--fast', 'a "b" \\c'], trust: true },
      'old-news': { url: 'http://127.0.0.1:9/sse', trust: true },
      news_2: { httpUrl: 'http://127.0.0.1:9/mcp?a=1&b=2', trust: true },
    },
    tools: { toolSearch: { enabled: false } },
  })
})

test('Qwen Code settings become flags', () => {
  const settings = { max_session_turns: 9, max_tool_calls: 50, max_wall_time: '5m', exclude_tools: ['a', 'b'] }
  expect(qwenCode.configure({ ...exampleSetup, settings }).args).toEqual([
    '--approval-mode=yolo',
    '--max-session-turns',
    '9',
    '--max-tool-calls',
    '50',
    '--max-wall-time',
    '5m',
    '--exclude-tools',
    'a',
    '--exclude-tools',
    'b',
  ])
})
