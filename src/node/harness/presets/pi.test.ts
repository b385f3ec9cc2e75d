import { expect, test } from 'vitest'
import { describeHarness, exampleSetup } from './harness.contract.ts'
import { pi } from './pi.ts'

describeHarness(pi)

test('pi reads the gateway from models.json, and uses no other host', () => {
  const { files, env, args } = pi.configure(exampleSetup)
  expect(Object.keys(files)).toEqual(['.pi/agent/models.json'])
  expect(JSON.parse(files['.pi/agent/models.json'] ?? '')).toEqual({
    providers: {
      polar: {
        baseUrl: 'http://127.0.0.1:4000/s/ses_1/v1',
        api: 'openai-completions',
        apiKey: 'sk-polar-secret',
        models: [
          {
            id: 'Qwen/Qwen3-8B',
            name: 'Qwen/Qwen3-8B',
            reasoning: true,
            input: ['text', 'image'],
            contextWindow: 131_072,
            maxTokens: 32_000,
            cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },
          },
        ],
      },
    },
  })
  expect(env).toEqual({ PI_OFFLINE: '1', PI_TELEMETRY: '0', PI_SKIP_VERSION_CHECK: '1' })
  expect(args).toEqual(['--provider', 'polar', '--model', 'Qwen/Qwen3-8B', '--print'])
})

test('pi reads context size and modalities of the model from models.json', () => {
  const { files } = pi.configure({ ...exampleSetup, contextTokens: 32_768, images: false })
  expect(JSON.parse(files['.pi/agent/models.json'] ?? '')).toMatchObject({
    providers: { polar: { models: [{ input: ['text'], contextWindow: 32_768, maxTokens: 8192 }] } },
  })
})

test('pi settings become flags and files', () => {
  const settings = { thinking: 'off', exclude_tools: ['edit', 'write'], system_prompt: 'Be.', config: { retry: {} } }
  const { files, args } = pi.configure({ ...exampleSetup, settings })
  expect(args.slice(5)).toEqual([
    '--thinking',
    'off',
    '--exclude-tools',
    'edit,write',
    '--system-prompt',
    '/sandbox/home/.polar/system-prompt.md',
  ])
  expect(files['.polar/system-prompt.md']).toBe('Be.')
  expect(JSON.parse(files['.pi/agent/settings.json'] ?? '')).toEqual({ retry: {} })
})
