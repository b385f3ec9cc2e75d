import * as z from 'zod'
import { answerTokens, defineHarness, extraConfig, optional, PROVIDER, toJsonFile, words } from './harness.ts'
import { mcpExtension, NO_SERVER } from './pi-mcp.ts'

const PiSettings = z.strictObject({
  thinking: z.enum(['off', 'minimal', 'low', 'medium', 'high', 'xhigh', 'max']).optional(),
  tools: words.describe('The only tools that are offered'),
  exclude_tools: words,
  append_system_prompt: z.string().min(1).optional(),
  system_prompt: z.string().min(1).optional().describe('Replaces the system prompt'),
  mode: z.enum(['text', 'json']).optional(),
  compat: z
    .record(z.string(), z.json())
    .optional()
    .describe('Differences of the engine from OpenAI, in the format of models.json'),
  config: extraConfig(['defaultProvider', 'defaultModel']).describe('Keys of settings.json'),
  extra_args: words,
})

export const pi = defineHarness({
  name: 'pi',
  title: 'pi',
  package: { registry: 'npm', name: '@earendil-works/pi-coding-agent', version: '0.87.1' },
  command: 'pi',
  program: () => ({ kind: 'node', paths: ['node_modules/@earendil-works/pi-coding-agent/dist/bundle/cli.js'] }),
  minimumNode: '22.19.0',
  dialect: 'openai-chat',
  hasSubAgents: false,
  instruction: 'stdin',
  mcpTransports: ['stdio', 'streamable-http'],
  mcpToolPrefix: (server) => `${server}_`,
  skillsFolder: '.pi/agent/skills',
  logFolders: ['.pi/agent/sessions'],
  settings: PiSettings,
  configure({ baseUrl, key, model, contextTokens, images, home, mcpServers }, settings) {
    const provider = {
      baseUrl: `${baseUrl}/v1`,
      api: 'openai-completions',
      apiKey: key,
      models: [
        {
          id: model,
          name: model,
          reasoning: true,
          input: images ? ['text', 'image'] : ['text'],
          contextWindow: contextTokens,
          maxTokens: answerTokens(contextTokens),
          cost: { input: 0, output: 0, cacheRead: 0, cacheWrite: 0 },
          compat: settings.compat,
        },
      ],
    }
    const { append_system_prompt: append, system_prompt: system } = settings
    return {
      files: {
        '.pi/agent/models.json': toJsonFile({ providers: { [PROVIDER]: provider } }),
        ...(settings.config === undefined ? {} : { '.pi/agent/settings.json': toJsonFile(settings.config) }),
        ...(mcpServers.length === 0 ? {} : { [EXTENSION]: mcpExtension(mcpServers) }),
        ...(append === undefined ? {} : { [APPENDED]: append }),
        ...(system === undefined ? {} : { [SYSTEM]: system }),
      },
      env: { PI_OFFLINE: '1', PI_TELEMETRY: '0', PI_SKIP_VERSION_CHECK: '1' },
      args: [
        '--provider',
        PROVIDER,
        '--model',
        model,
        '--print',
        ...optional('--thinking', settings.thinking),
        ...optional('--tools', settings.tools?.join(',')),
        ...optional('--exclude-tools', settings.exclude_tools?.join(',')),
        // Both flags accept a text or a file name.
        ...optional('--append-system-prompt', append && `${home}/${APPENDED}`),
        ...optional('--system-prompt', system && `${home}/${SYSTEM}`),
        ...optional('--mode', settings.mode),
        ...(settings.extra_args ?? []),
      ],
    }
  },
  // A context overflow during the run also ends with 0 and an empty answer.
  exitCodes: { 1: 'gave-up', [NO_SERVER]: 'bad-setup' },
})

const EXTENSION = '.pi/agent/extensions/polar-mcp.js'
const APPENDED = '.polar/append-system-prompt.md'
const SYSTEM = '.polar/system-prompt.md'
