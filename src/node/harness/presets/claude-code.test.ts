import { expect, test } from 'vitest'
import { claudeCode } from './claude-code.ts'
import { describeHarness, exampleServers, exampleSetup } from './harness.contract.ts'

describeHarness(claudeCode)

test('Claude Code reads the gateway from variables, and uses no other host', () => {
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
    ANTHROPIC_SMALL_FAST_MODEL: 'Qwen/Qwen3-8B',
    CLAUDE_CODE_SUBAGENT_MODEL: 'Qwen/Qwen3-8B',
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

test('Claude Code offers MCP tools in its first call', () => {
  const { files, env } = claudeCode.configure({ ...exampleSetup, mcpServers: exampleServers })
  expect(JSON.parse(files['.claude.json'] ?? '')).toEqual({
    mcpServers: {
      words: { type: 'stdio', command: 'word-server', args: ['--fast', 'a "b" \\c'] },
      'old-news': { type: 'sse', url: 'http://127.0.0.1:9/sse' },
      news_2: { type: 'http', url: 'http://127.0.0.1:9/mcp?a=1&b=2' },
    },
  })
  expect(env).toMatchObject({ MCP_CONNECTION_NONBLOCKING: '0', ENABLE_TOOL_SEARCH: '0' })
})

test("NVIDIA Polar's Claude Code settings become flags", () => {
  const settings = {
    reasoning_effort: 'high',
    fallback_model: 'claude-haiku-4-5',
    allowed_tools: 'Bash Edit',
    disallowed_tools: 'WebFetch',
  }
  const { args } = claudeCode.configure({ ...exampleSetup, settings })
  const tools = ['--allowedTools', 'Bash Edit', '--disallowedTools', 'WebFetch']
  const [print, skip, ...rest] = args
  expect([print, skip]).toEqual(['--print', '--dangerously-skip-permissions'])
  expect(rest).toEqual(['--effort', 'high', '--fallback-model', 'claude-haiku-4-5', ...tools])
  const same = claudeCode.configure({ ...exampleSetup, settings: { fallback_model: exampleSetup.model } })
  expect(same.args).not.toContain('--fallback-model')
})

test('Claude Code settings become flags, and prompts become files', () => {
  const settings = {
    max_turns: 20,
    effort: 'high',
    max_thinking_tokens: 1000,
    append_system_prompt: 'Be brief.',
    allowed_tools: ['Bash(git *)', 'Edit'],
    permission_mode: 'dontAsk',
    output_format: 'stream-json',
    config: { permissions: { allow: ['Read'] } },
  }
  const { files, env, args } = claudeCode.configure({ ...exampleSetup, settings })
  expect(args).toEqual([
    '--print',
    '--permission-mode',
    'dontAsk',
    '--max-turns',
    '20',
    '--effort',
    'high',
    '--append-system-prompt-file',
    '/sandbox/home/.polar/append-system-prompt.md',
    '--allowedTools',
    'Bash(git *),Edit',
    '--output-format',
    'stream-json',
    '--verbose',
  ])
  expect(env['MAX_THINKING_TOKENS']).toBe('1000')
  expect(files['.polar/append-system-prompt.md']).toBe('Be brief.')
  expect(JSON.parse(files['.claude/settings.json'] ?? '')).toMatchObject({
    permissions: { deny: ['WebSearch'], allow: ['Read'] },
  })
})
