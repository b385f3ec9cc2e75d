import { expect, test } from 'vitest'
import { geminiCli } from './gemini-cli.ts'
import { endOf } from './harness.ts'
import { describeHarness, exampleSetup } from './harness.contract.ts'

describeHarness(geminiCli)

test('Gemini CLI is told how to log in by its settings, and stays off the network', () => {
  const { files, env, args } = geminiCli.configure(exampleSetup)
  expect(Object.keys(files)).toEqual(['.gemini/settings.json', '.gemini/policies/polar.toml'])
  expect(files['.gemini/policies/polar.toml']).toContain('toolName = "google_web_search"\ndecision = "deny"\n')
  expect(JSON.parse(files['.gemini/settings.json'] ?? '')).toEqual({
    security: { auth: { selectedType: 'gemini-api-key' } },
    privacy: { usageStatisticsEnabled: false },
    telemetry: { enabled: false },
    general: { enableAutoUpdate: false, enableAutoUpdateNotification: false },
  })
  expect(env).toEqual({
    GEMINI_API_KEY: 'sk-polar-secret',
    GOOGLE_GEMINI_BASE_URL: 'http://127.0.0.1:4000/s/ses_1',
    GEMINI_TELEMETRY_ENABLED: 'false',
  })
  expect(args).toEqual(['--model', 'Qwen/Qwen3-8B', '--yolo', '--skip-trust'])
})

test('Gemini CLI tells a wrong setup and a limit apart from giving up', () => {
  expect([1, 41, 53, 130].map((code) => endOf(geminiCli, code))).toEqual([
    'gave-up',
    'bad-setup',
    'limit-reached',
    'interrupted',
  ])
})
