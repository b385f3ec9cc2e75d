import * as z from 'zod'
import { mergeTrees } from '../../../lib/fs/merge-trees.ts'
import type { McpServer } from '../../../model/task.ts'
import {
  answerTokens,
  defineHarness,
  extraConfig,
  optional,
  toJsonFile,
  toList,
  words,
  wordsOrText,
} from './harness.ts'

const Effort = z.enum(['low', 'medium', 'high', 'xhigh', 'max'])

const ClaudeCodeSettings = z.strictObject({
  max_turns: z.int().positive().optional(),
  effort: Effort.optional(),
  reasoning_effort: Effort.optional().describe("NVIDIA Polar's name of effort"),
  fallback_model: z
    .string()
    .min(1)
    .optional()
    .describe('Requested while the model is overloaded; served by the same engine'),
  max_thinking_tokens: z.int().min(0).optional(),
  max_budget_usd: z.number().positive().optional(),
  append_system_prompt: z.string().min(1).optional(),
  system_prompt: z.string().min(1).optional().describe('Replaces the system prompt'),
  tools: words.describe('The only built-in tools that are offered'),
  allowed_tools: wordsOrText,
  disallowed_tools: wordsOrText,
  permission_mode: z
    .enum(['acceptEdits', 'dontAsk', 'plan'])
    .optional()
    .describe('Absent: every action is allowed without confirmation'),
  tool_search: z.boolean().optional().describe('Whether the model loads MCP tools on demand (default: no)'),
  output_format: z.enum(['text', 'json', 'stream-json']).optional(),
  config: extraConfig(['env', 'apiKeyHelper', 'model']).describe('Additional keys of settings.json'),
  extra_args: words,
})

export const claudeCode = defineHarness({
  name: 'claude_code',
  title: 'Claude Code',
  package: { registry: 'npm', name: '@anthropic-ai/claude-code', version: '2.1.325' },
  command: 'claude',
  program: (platform) => ({
    kind: 'native',
    paths: [
      `node_modules/@anthropic-ai/claude-code-${platform}/claude`,
      `node_modules/@anthropic-ai/claude-code-${platform}-musl/claude`,
    ],
  }),
  dialect: 'anthropic-messages',
  hasSubAgents: true,
  instruction: 'stdin',
  mcpTransports: ['stdio', 'sse', 'streamable-http'],
  mcpToolPrefix: (server) => `mcp__${server}__`,
  skillsFolder: '.claude/skills',
  logFolders: ['.claude/projects'],
  settings: ClaudeCodeSettings,
  configure({ baseUrl, key, model, contextTokens, home, mcpServers, hasSkills }, settings) {
    const config = {
      // Otherwise it queries the vendor about every host before it fetches a page.
      skipWebFetchPreflight: true,
      // This tool runs at the provider; engines do not implement it.
      permissions: { deny: ['WebSearch'] },
    }
    const { append_system_prompt: append, system_prompt: system, permission_mode: mode } = settings
    return {
      files: {
        '.claude/settings.json': toJsonFile(mergeTrees(config, settings.config ?? {})),
        ...(mcpServers.length === 0 ? {} : { '.claude.json': toJsonFile({ mcpServers: toEntries(mcpServers) }) }),
        ...(append === undefined ? {} : { [APPENDED]: append }),
        ...(system === undefined ? {} : { [SYSTEM]: system }),
      },
      env: {
        ANTHROPIC_BASE_URL: baseUrl,
        ANTHROPIC_API_KEY: key,
        ANTHROPIC_MODEL: model,
        // Sub-agents may request a model class, and helper calls a small model.
        ANTHROPIC_DEFAULT_OPUS_MODEL: model,
        ANTHROPIC_DEFAULT_SONNET_MODEL: model,
        ANTHROPIC_DEFAULT_HAIKU_MODEL: model,
        ANTHROPIC_SMALL_FAST_MODEL: model,
        CLAUDE_CODE_SUBAGENT_MODEL: model,
        // Claude Code assumes a context of a million tokens for unknown models.
        CLAUDE_CODE_MAX_CONTEXT_TOKENS: String(contextTokens),
        CLAUDE_CODE_MAX_OUTPUT_TOKENS: String(answerTokens(contextTokens)),
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC: '1',
        DISABLE_TELEMETRY: '1',
        DISABLE_ERROR_REPORTING: '1',
        DISABLE_AUTOUPDATER: '1',
        // The header begins with a hash of the prompt, which prevents sessions from sharing a prefix.
        CLAUDE_CODE_ATTRIBUTION_HEADER: '0',
        // As root it refuses to skip permissions unless this variable is set.
        IS_SANDBOX: '1',
        ...(settings.max_thinking_tokens === undefined
          ? {}
          : { MAX_THINKING_TOKENS: String(settings.max_thinking_tokens) }),
        // Built-in skills use up the default budget, so skills of the task would be listed without descriptions.
        ...(hasSkills ? { SLASH_COMMAND_TOOL_CHAR_BUDGET: '40000' } : {}),
        ...(mcpServers.length === 0 ? {} : mcpVariables(settings.tool_search ?? false)),
      },
      args: [
        '--print',
        ...(mode === undefined ? ['--dangerously-skip-permissions'] : ['--permission-mode', mode]),
        ...optional('--max-turns', settings.max_turns),
        ...optional('--effort', settings.effort ?? settings.reasoning_effort),
        // The CLI rejects a fallback that equals the model.
        ...optional('--fallback-model', settings.fallback_model === model ? undefined : settings.fallback_model),
        ...optional('--max-budget-usd', settings.max_budget_usd),
        ...optional('--append-system-prompt-file', append && `${home}/${APPENDED}`),
        ...optional('--system-prompt-file', system && `${home}/${SYSTEM}`),
        ...optional('--tools', settings.tools?.join(',')),
        ...optional('--allowedTools', toList(settings.allowed_tools)),
        ...optional('--disallowedTools', toList(settings.disallowed_tools)),
        ...optional('--output-format', settings.output_format),
        ...(settings.output_format === 'stream-json' ? ['--verbose'] : []),
        ...(settings.extra_args ?? []),
      ],
    }
  },
  exitCodes: { 1: 'gave-up' },
})

const APPENDED = '.polar/append-system-prompt.md'
const SYSTEM = '.polar/system-prompt.md'

function toEntries(servers: readonly McpServer[]): Record<string, unknown> {
  return Object.fromEntries(
    servers.map(({ name, transport, command, args, url }) => {
      if (transport === 'stdio') return [name, { type: 'stdio', command, args }]
      return [name, { type: transport === 'sse' ? 'sse' : 'http', url }]
    }),
  )
}

function mcpVariables(toolSearch: boolean): Record<string, string> {
  return {
    // Otherwise the first call is sent before the servers are ready, without their tools.
    MCP_CONNECTION_NONBLOCKING: '0',
    // Otherwise MCP tools are not in the request until the model searches for them.
    ENABLE_TOOL_SEARCH: toolSearch ? '1' : '0',
  }
}
