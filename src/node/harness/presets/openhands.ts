import * as z from 'zod'
import { loadProgram } from '../../../lib/process/load-program.ts'
import { answerTokens, defineHarness, extraConfig, toJsonFile } from './harness.ts'

/** Below HOME. */
const SKILLS = '.openhands/skills'

const OpenHandsSettings = z.strictObject({
  max_iterations: z.int().positive().optional().describe('Most model calls; absent: 500'),
  stuck_detection: z.boolean().optional().describe('Ends when it does the same again and again. Absent: yes'),
  condenser: z.boolean().optional().describe('Summarises what happened long ago, by calls of its own. Absent: yes'),
  terminal: z
    .enum(['subprocess', 'tmux'])
    .optional()
    .describe('What its shell runs in; tmux must be in the sandbox. Absent: subprocess'),
  system_prompt: z.string().min(1).optional().describe('Instead of its own'),
  reasoning_effort: z.string().min(1).optional(),
  request_timeout_seconds: z.int().positive().optional().describe('Of one model call; absent: 3600'),
  temperature: z.number().min(0).optional(),
  max_output_tokens: z
    .int()
    .positive()
    .optional()
    .describe('Of one answer; absent: a quarter of the context, at most 32000'),
  config: extraConfig(['model', 'base_url', 'api_key', 'api_mode', 'fallback_strategy', 'auth_type']).describe(
    'Further fields of its LLM, such as temperature',
  ),
})

const runner = loadProgram(new URL('./run-openhands.py', import.meta.url))

/** Its shell reads what a terminal would; else every answer begins with codes for pasting. */
const INPUTRC = 'set enable-bracketed-paste off\n'

export const openhands = defineHarness({
  name: 'openhands',
  title: 'OpenHands',
  package: {
    registry: 'pypi',
    name: 'openhands-sdk',
    version: '1.58.0',
    pins: ['openhands-tools==1.58.0'],
    minimumPython: '3.12',
  },
  command: 'openhands',
  program: () => ({ kind: 'python', paths: ['python/bin/python3'] }),
  dialect: 'openai-chat',
  hasSubAgents: false,
  instruction: 'file',
  mcpTransports: ['stdio', 'sse', 'streamable-http'],
  skillsFolder: SKILLS,
  settings: OpenHandsSettings,
  configure({ baseUrl, key, model, contextTokens, images, home, instructionFile, mcpServers, hasSkills }, settings) {
    const servers = mcpServers.map(({ name, transport, command, args, url }) => [
      name,
      transport === 'stdio' ? { transport, command, args } : { transport, url },
    ])
    const { max_iterations: iterations, system_prompt: prompt, stuck_detection: detection } = settings
    const config = {
      llm: {
        usage_id: 'agent',
        timeout: settings.request_timeout_seconds ?? 3600,
        reasoning_effort: settings.reasoning_effort ?? null,
        caching_prompt: false,
        prompt_cache_retention: null,
        disable_vision: !images,
        capability_overrides: { supports_vision: images },
        max_input_tokens: contextTokens - answerTokens(contextTokens),
        max_output_tokens: settings.max_output_tokens ?? answerTokens(contextTokens),
        ...(settings.temperature === undefined ? {} : { temperature: settings.temperature }),
        input_cost_per_token: 0,
        output_cost_per_token: 0,
        ...settings.config,
        model: `openai/${model}`,
        base_url: `${baseUrl}/v1`,
        api_key: key,
        api_mode: 'chat',
      },
      agent: {
        mcp_config: Object.fromEntries(servers) as unknown,
        ...(prompt === undefined ? {} : { system_prompt: prompt }),
      },
      condenser: settings.condenser ?? true,
      terminal: settings.terminal ?? 'subprocess',
      skills: hasSkills ? `${home}/${SKILLS}` : null,
      conversation: {
        ...(iterations === undefined ? {} : { max_iteration_per_run: iterations }),
        ...(detection === undefined ? {} : { stuck_detection: detection }),
      },
    }
    return {
      files: {
        '.polar/run-openhands.py': runner(),
        '.polar/openhands.json': toJsonFile(config),
        '.inputrc': INPUTRC,
      },
      env: { POLAR_INSTRUCTION_FILE: instructionFile },
      args: [`${home}/.polar/run-openhands.py`],
    }
  },
  exitCodes: { 1: 'gave-up', 53: 'limit-reached' },
})
