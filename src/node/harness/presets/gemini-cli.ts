import * as z from 'zod'
import { mergeTrees } from '../../../lib/fs/merge-trees.ts'
import {
  defineHarness,
  extraConfig,
  GEMINI_EXIT_CODES,
  optional,
  toGeminiServer,
  toJsonFile,
  words,
} from './harness.ts'

/** Disables a tool that runs at the provider; engines do not implement it. */
const POLICY = `[[rule]]
toolName = "google_web_search"
decision = "deny"
priority = 900
`

const GeminiCliSettings = z.strictObject({
  approval_mode: z.enum(['auto_edit', 'plan', 'yolo']).optional().describe('Absent: yolo, every action is allowed'),
  max_session_turns: z.int().positive().optional(),
  compression_threshold: z
    .number()
    .gt(0)
    .lt(1)
    .optional()
    .describe('Share of the context at which Gemini CLI compacts'),
  core_tools: words.describe('The only built-in tools that are offered'),
  exclude_tools: words,
  output_format: z.enum(['text', 'json', 'stream-json']).optional(),
  config: extraConfig(['security', 'mcpServers']).describe('Additional keys of settings.json'),
  extra_args: words,
})

export const geminiCli = defineHarness({
  name: 'gemini_cli',
  title: 'Gemini CLI',
  package: { registry: 'npm', name: '@google/gemini-cli', version: '0.61.0' },
  command: 'gemini',
  program: () => ({ kind: 'node', paths: ['node_modules/@google/gemini-cli/bundle/gemini.js'] }),
  minimumNode: '20.0.0',
  dialect: 'google-generate',
  hasSubAgents: true,
  instruction: 'stdin',
  mcpTransports: ['stdio', 'sse', 'streamable-http'],
  mcpToolPrefix: (server) => `mcp_${server}_`,
  skillsFolder: '.gemini/skills',
  logFolders: ['.gemini/tmp'],
  settings: GeminiCliSettings,
  configure({ baseUrl, key, model, mcpServers }, settings) {
    const config = {
      // With environment variables alone it selects a login method that it then refuses (exit code 41).
      security: { auth: { selectedType: 'gemini-api-key' } },
      privacy: { usageStatisticsEnabled: false },
      telemetry: { enabled: false },
      general: { enableAutoUpdate: false, enableAutoUpdateNotification: false },
      model: { maxSessionTurns: settings.max_session_turns, compressionThreshold: settings.compression_threshold },
      tools: { core: settings.core_tools, exclude: settings.exclude_tools },
      mcpServers: Object.fromEntries(mcpServers.map((server) => [server.name, toGeminiServer(server)])),
    }
    return {
      files: {
        '.gemini/settings.json': toJsonFile(mergeTrees(config, settings.config ?? {})),
        '.gemini/policies/polar.toml': POLICY,
      },
      env: { GEMINI_API_KEY: key, GOOGLE_GEMINI_BASE_URL: baseUrl, GEMINI_TELEMETRY_ENABLED: 'false' },
      args: [
        // Without this flag it calls another model to select one.
        '--model',
        model,
        `--approval-mode=${settings.approval_mode ?? 'yolo'}`,
        '--skip-trust',
        ...optional('--output-format', settings.output_format),
        ...(settings.extra_args ?? []),
      ],
    }
  },
  exitCodes: GEMINI_EXIT_CODES,
})
