import { expect, test } from 'vitest'
import { claudeCode } from './claude-code.ts'
import { describeHarness, exampleSetup } from './harness.contract.ts'

describeHarness(claudeCode)

test('Claude Code is told of the gateway by variables, and stays off the network', () => {
  const { files, env, args } = claudeCode.configure(exampleSetup)
  expect(Object.keys(files)).toEqual(['.claude/settings.json'])
  expect(JSON.parse(files['.claude/settings.json'] ?? '')).toEqual({
    skipWebFetchPreflight: true,
    permissions: { deny: ['WebSearch'] },
  })
  expect(env).toEqual({
    ANTHROPIC_BASE_URL: 'http://127.0.0.1:4000/s/ses_1',
    ANTHROPIC_API_KEY: 'sk-polar-secret',
    ANTHROPIC_MODEL: 'Qwen/Qwen3-8B',
    ANTHROPIC_DEFAULT_OPUS_MODEL: 'Qwen/Qwen3-8B',
    ANTHROPIC_DEFAULT_SONNET_MODEL: 'Qwen/Qwen3-8B',
    ANTHROPIC_DEFAULT_HAIKU_MODEL: 'Qwen/Qwen3-8B',
    CLAUDE_CODE_MAX_CONTEXT_TOKENS: '131072',
    CLAUDE_CODE_MAX_OUTPUT_TOKENS: '32000',
    CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
    DISABLE_TELEMETRY: '1',
    DISABLE_ERROR_REPORTING: '1',
    DISABLE_AUTOUPDATER: '1',
    CLAUDE_CODE_ATTRIBUTION_HEADER: '0',
    IS_SANDBOX: '1',
  })
  expect(args).toEqual(['--print', '--dangerously-skip-permissions'])
})
