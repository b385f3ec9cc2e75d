import { expect, test } from 'vitest'
import { describeHarness, exampleSetup } from './harness.contract.ts'
import { opencode } from './opencode.ts'

describeHarness(opencode)

test('OpenCode is told of the gateway by its settings, and stays off the network', () => {
  const { files, env, args } = opencode.configure(exampleSetup)
  expect(Object.keys(files)).toEqual(['.config/opencode/opencode.json', '.config/opencode/.npmrc'])
  expect(files['.config/opencode/.npmrc']).toBe('offline=true\n')
  expect(JSON.parse(files['.config/opencode/opencode.json'] ?? '')).toEqual({
    autoupdate: false,
    share: 'disabled',
    permission: 'allow',
    model: 'polar/Qwen/Qwen3-8B',
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
