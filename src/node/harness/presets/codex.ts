import * as z from 'zod'
import { mergeTrees } from '../../../lib/fs/merge-trees.ts'
import type { McpServer } from '../../../model/task.ts'
import { hasNull, toToml } from './codex-toml.ts'
import { defineHarness, extraConfig, KEY_VARIABLE, PROVIDER, words } from './harness.ts'

const targets: Readonly<Record<string, string>> = {
  'linux-x64': 'x86_64-unknown-linux-musl',
  'linux-arm64': 'aarch64-unknown-linux-musl',
  'darwin-x64': 'x86_64-apple-darwin',
  'darwin-arm64': 'aarch64-apple-darwin',
}

const CodexSettings = z.strictObject({
  version: z
    .string()
    .optional()
    .describe('Required version. A version that polar does not install must be in the sandbox. Absent or empty: any'),
  reasoning_effort: z.enum(['none', 'minimal', 'low', 'medium', 'high', 'xhigh']).optional(),
  reasoning_summary: z.enum(['auto', 'concise', 'detailed', 'none']).optional(),
  verbosity: z.enum(['low', 'medium', 'high']).optional(),
  sandbox_mode: z
    .enum(['read-only', 'workspace-write', 'danger-full-access'])
    .optional()
    .describe('Codex sandbox inside the session sandbox. Absent: none'),
  developer_instructions: z.string().optional().describe('Added to the system prompt'),
  auto_compact_tokens: z.int().positive().optional().describe('Context size at which Codex compacts'),
  stream_idle_timeout_ms: z.int().positive().optional(),
  features: z.record(z.string().regex(/^\w+$/), z.boolean()).optional().describe('Feature switches, as for --enable'),
  json_events: z.boolean().optional().describe('Prints JSON events instead of text'),
  config: extraConfig(['model', 'model_provider', 'model_providers', 'profile', 'mcp_servers'])
    .refine((config) => !hasNull(config), 'TOML has no null')
    .describe('Additional keys of config.toml'),
  extra_args: words,
})

export const codex = defineHarness({
  name: 'codex',
  title: 'Codex',
  package: { registry: 'npm', name: '@openai/codex', version: '0.166.0' },
  command: 'codex',
  program: (platform) => ({
    kind: 'native',
    paths: [`node_modules/@openai/codex-${platform}/vendor/${targets[platform] ?? platform}/bin/codex`],
  }),
  dialect: 'openai-responses',
  hasSubAgents: true,
  instruction: 'stdin',
  mcpTransports: ['stdio', 'streamable-http'],
  mcpToolPrefix: (server) => `mcp__${server}__`,
  skillsFolder: '.codex/skills',
  logFolders: ['.codex/sessions'],
  settings: CodexSettings,
  versionOf: ({ version }) => (typeof version === 'string' && version !== '' ? version : undefined),
  configure({ baseUrl, key, model, contextTokens, images, mcpServers }, settings) {
    const config = {
      model,
      model_provider: PROVIDER,
      model_context_window: contextTokens,
      model_reasoning_effort: settings.reasoning_effort,
      model_reasoning_summary: settings.reasoning_summary,
      model_verbosity: settings.verbosity,
      model_auto_compact_token_limit: settings.auto_compact_tokens,
      developer_instructions: settings.developer_instructions,
      check_for_update_on_startup: false,
      // This tool runs at the provider; engines do not implement it.
      web_search: 'disabled',
      model_providers: {
        [PROVIDER]: {
          name: PROVIDER,
          base_url: `${baseUrl}/v1`,
          env_key: KEY_VARIABLE,
          wire_api: 'responses',
          stream_idle_timeout_ms: settings.stream_idle_timeout_ms,
        },
      },
      // The last three connect to other hosts.
      features: { view_image: images, plugins: false, apps: false, remote_plugin: false, ...settings.features },
      analytics: { enabled: false },
      feedback: { enabled: false },
      mcp_servers: Object.fromEntries(mcpServers.map((server) => [server.name, toEntry(server)])),
    }
    const { sandbox_mode: mode } = settings
    return {
      files: { '.codex/config.toml': toToml(mergeTrees(config, settings.config ?? {})) },
      env: { [KEY_VARIABLE]: key },
      args: [
        'exec',
        ...(mode === undefined ? ['--dangerously-bypass-approvals-and-sandbox'] : ['--sandbox', mode]),
        '--skip-git-repo-check',
        ...(settings.json_events ? ['--json'] : []),
        ...(settings.extra_args ?? []),
        '-',
      ],
    }
  },
  exitCodes: { 1: 'gave-up', 2: 'bad-setup' },
})

/** `required`: a server that does not start ends the run, so the agent never works without its tools. */
function toEntry({ transport, command, args, url }: McpServer): Record<string, unknown> {
  const address = transport === 'stdio' ? { command, args } : { url }
  return { ...address, required: true, default_tools_approval_mode: 'approve' }
}
