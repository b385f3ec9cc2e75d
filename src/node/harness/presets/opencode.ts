import * as z from 'zod'
import { mergeTrees } from '../../../lib/fs/merge-trees.ts'
import type { McpServer } from '../../../model/task.ts'
import {
  answerTokens,
  defineHarness,
  extraConfig,
  KEY_VARIABLE,
  optional,
  PROVIDER,
  toJsonFile,
  words,
} from './harness.ts'

const OpencodeSettings = z.strictObject({
  agent: z.string().min(1).optional().describe('Name of the agent. Absent: build'),
  variant: z.string().min(1).optional().describe('Name of a model variant, such as a reasoning effort'),
  steps: z.int().positive().optional().describe('Maximum tool rounds before the final answer'),
  permission: z.record(z.string(), z.json()).optional().describe('Permissions. Absent: everything is allowed'),
  tools: z.record(z.string(), z.boolean()).optional().describe('Enables or disables tools by name'),
  instructions: words.describe('Additional instruction files, as in opencode.json'),
  json_events: z.boolean().optional().describe('Prints JSON events instead of text'),
  config: extraConfig(['provider', 'model', 'small_model', 'mcp']).describe('Additional keys of opencode.json'),
  extra_args: words,
})

export const opencode = defineHarness({
  name: 'opencode',
  title: 'OpenCode',
  package: { registry: 'npm', name: 'opencode-ai', version: '1.18.33' },
  command: 'opencode',
  program: (platform) => ({
    kind: 'native',
    paths: [`node_modules/opencode-${platform}/bin/opencode`, `node_modules/opencode-${platform}-musl/bin/opencode`],
  }),
  dialect: 'openai-chat',
  hasSubAgents: true,
  instruction: 'stdin',
  mcpTransports: ['stdio', 'sse', 'streamable-http'],
  mcpToolPrefix: (server) => `${server}_`,
  skillsFolder: '.config/opencode/skills',
  logFolders: ['.local/share/opencode/log'],
  settings: OpencodeSettings,
  configure({ baseUrl, key, model, contextTokens, images, mcpServers }, settings) {
    const { agent = 'build', steps } = settings
    const config = {
      autoupdate: false,
      share: 'disabled',
      permission: permissionOf(settings),
      model: `${PROVIDER}/${model}`,
      small_model: `${PROVIDER}/${model}`,
      instructions: settings.instructions,
      agent: steps === undefined ? undefined : { [agent]: { steps } },
      provider: {
        [PROVIDER]: {
          npm: '@ai-sdk/openai-compatible',
          name: PROVIDER,
          options: { baseURL: `${baseUrl}/v1`, apiKey: `{env:${KEY_VARIABLE}}` },
          models: {
            [model]: {
              name: model,
              attachment: images,
              reasoning: true,
              tool_call: true,
              modalities: { input: images ? ['text', 'image'] : ['text'], output: ['text'] },
              limit: { context: contextTokens, output: answerTokens(contextTokens) },
            },
          },
        },
      },
      mcp: Object.fromEntries(mcpServers.map((server) => [server.name, toEntry(server)])),
    }
    return {
      files: {
        '.config/opencode/opencode.json': toJsonFile(mergeTrees(config, settings.config ?? {})),
        // OpenCode installs a plugin package in this folder at every start. Other folders, where the agent runs npm, stay online.
        '.config/opencode/.npmrc': 'offline=true\n',
      },
      env: {
        [KEY_VARIABLE]: key,
        OPENCODE_DISABLE_AUTOUPDATE: '1',
        OPENCODE_DISABLE_MODELS_FETCH: '1',
        OPENCODE_DISABLE_LSP_DOWNLOAD: '1',
        OPENCODE_DISABLE_DEFAULT_PLUGINS: '1',
        OPENCODE_DISABLE_SHARE: '1',
      },
      args: [
        'run',
        // Without a title OpenCode requests one from the model.
        '--title',
        PROVIDER,
        ...optional('--agent', settings.agent),
        ...optional('--variant', settings.variant),
        ...(settings.json_events ? ['--format', 'json'] : []),
        ...(settings.extra_args ?? []),
      ],
    }
  },
  exitCodes: { 1: 'gave-up' },
})

/** The last matching rule applies. A tool that is always denied is not offered to the model. */
function permissionOf({ permission, tools }: z.infer<typeof OpencodeSettings>): unknown {
  if (tools === undefined) return permission ?? 'allow'
  const switches = Object.entries(tools).map(([name, isOn]) => [name, isOn ? 'allow' : 'deny'])
  return { ...(permission ?? { '*': 'allow' }), ...Object.fromEntries(switches) }
}

/** OpenCode detects the transport of a remote server by itself. */
function toEntry({ transport, command, args, url }: McpServer): Record<string, unknown> {
  if (transport === 'stdio') return { type: 'local', command: [command, ...args], enabled: true }
  // Without `oauth: false` OpenCode starts an interactive login if a server answers 401.
  return { type: 'remote', url, enabled: true, oauth: false }
}
