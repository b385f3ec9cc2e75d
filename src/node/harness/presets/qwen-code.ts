import * as z from 'zod'
import { mergeTrees } from '../../../lib/fs/merge-trees.ts'
import {
  defineHarness,
  extraConfig,
  GEMINI_EXIT_CODES,
  KEY_VARIABLE,
  optional,
  PROVIDER,
  repeated,
  toGeminiServer,
  toJsonFile,
  words,
} from './harness.ts'

const QwenCodeSettings = z.strictObject({
  approval_mode: z.enum(['plan', 'auto-edit', 'yolo']).optional().describe('Absent: yolo, every action is allowed'),
  max_session_turns: z.int().positive().optional(),
  max_tool_calls: z.int().min(0).max(1_000_000).optional(),
  max_wall_time: z
    .string()
    .regex(/^\d+(\.\d+)?[smh]?$/)
    .optional(),
  append_system_prompt: z.string().min(1).max(100_000).optional(),
  core_tools: words.describe('The only built-in tools that are offered'),
  exclude_tools: words,
  tool_search: z.boolean().optional().describe('Whether the model loads MCP tools on demand (default: no)'),
  output_format: z.enum(['text', 'json', 'stream-json']).optional(),
  config: extraConfig(['security', 'model', 'modelProviders', 'mcpServers']).describe(
    'Additional keys of settings.json',
  ),
  extra_args: words,
})

export const qwenCode = defineHarness({
  name: 'qwen_code',
  title: 'Qwen Code',
  package: { registry: 'npm', name: '@qwen-code/qwen-code', version: '0.24.4' },
  command: 'qwen',
  program: () => ({ kind: 'node', paths: ['node_modules/@qwen-code/qwen-code/cli-entry.js'] }),
  minimumNode: '22.0.0',
  dialect: 'openai-chat',
  hasSubAgents: true,
  instruction: 'stdin',
  mcpTransports: ['stdio', 'sse', 'streamable-http'],
  mcpToolPrefix: (server) => `mcp__${server}__`,
  skillsFolder: '.qwen/skills',
  logFolders: ['.qwen/projects'],
  settings: QwenCodeSettings,
  configure({ baseUrl, key, model, contextTokens, images, mcpServers }, settings) {
    const provider = {
      id: model,
      name: PROVIDER,
      envKey: KEY_VARIABLE,
      baseUrl: `${baseUrl}/v1`,
      generationConfig: {
        contextWindowSize: contextTokens,
        // Without this key every image is replaced by "This model does not support image input".
        modalities: { image: images },
      },
    }
    const config = {
      privacy: { usageStatisticsEnabled: false },
      telemetry: { enabled: false },
      general: { enableAutoUpdate: false },
      // The memory feature sends model calls with the whole history after the run.
      memory: { enableManagedAutoMemory: false, enableManagedAutoDream: false, enableAutoSkill: false },
      security: { auth: { selectedType: 'openai' } },
      model: { name: model },
      modelProviders: { openai: [provider] },
      // Otherwise MCP tools are not in the request until the model searches for them.
      tools: mcpServers.length === 0 ? undefined : { toolSearch: { enabled: settings.tool_search ?? false } },
      mcpServers: Object.fromEntries(mcpServers.map((server) => [server.name, toGeminiServer(server)])),
    }
    return {
      files: { '.qwen/settings.json': toJsonFile(mergeTrees(config, settings.config ?? {})) },
      env: { [KEY_VARIABLE]: key, QWEN_USAGE_STATISTICS_ENABLED: '0', QWEN_CODE_SUPPRESS_YOLO_WARNING: '1' },
      args: [
        `--approval-mode=${settings.approval_mode ?? 'yolo'}`,
        ...optional('--max-session-turns', settings.max_session_turns),
        ...optional('--max-tool-calls', settings.max_tool_calls),
        ...optional('--max-wall-time', settings.max_wall_time),
        ...optional('--append-system-prompt', settings.append_system_prompt),
        ...repeated('--core-tools', settings.core_tools),
        ...repeated('--exclude-tools', settings.exclude_tools),
        ...optional('--output-format', settings.output_format),
        ...(settings.extra_args ?? []),
      ],
    }
  },
  exitCodes: { ...GEMINI_EXIT_CODES, 55: 'limit-reached' },
})
