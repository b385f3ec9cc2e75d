import * as z from 'zod'
import { loadProgram } from '../../../lib/process/load-program.ts'
import { answerTokens, defineHarness, extraConfig, toJsonFile } from './harness.ts'

/** Relative to HOME. */
const SKILLS = '.openhands/skills'

const OpenHandsSettings = z.strictObject({
  max_iterations: z.int().positive().optional().describe('Maximum model calls. Absent: 500'),
  stuck_detection: z.boolean().optional().describe('Ends the run when the agent repeats itself. Absent: yes'),
  condenser: z.boolean().optional().describe('Summarises old events with additional model calls. Absent: yes'),
  terminal: z
    .enum(['subprocess', 'tmux'])
    .optional()
    .describe('Terminal of the shell; tmux must be installed in the sandbox. Absent: subprocess'),
  system_prompt: z.string().min(1).optional().describe('Replaces the system prompt'),
  reasoning_effort: z.string().min(1).optional(),
  request_timeout_seconds: z.int().positive().optional().describe('Time limit of one model call. Absent: 3600'),
  temperature: z.number().min(0).optional(),
  max_output_tokens: z
    .int()
    .positive()
    .optional()
    .describe('Limit of one answer. Absent: a quarter of the context, at most 32000'),
  config: extraConfig(['model', 'base_url', 'api_key', 'api_mode', 'fallback_strategy', 'auth_type']).describe(
    'Additional fields of its LLM, such as temperature',
  ),
})

/**
 * OpenHands is a library without a command, so this program runs it. It removes its own variables from the environment
 * before the agent has a shell.
 */
const runner = loadProgram(new URL('./run-openhands.py', import.meta.url))

/** Without this setting every output of the OpenHands shell begins with bracketed-paste codes. */
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
    imports: {
      modules: [
        'openhands.sdk',
        'openhands.tools.file_editor',
        'openhands.tools.task_tracker',
        'openhands.tools.terminal',
      ],
      env: { LITELLM_LOCAL_MODEL_COST_MAP: 'True', OPENHANDS_SUPPRESS_BANNER: '1' },
    },
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
        temperature: settings.temperature,
        input_cost_per_token: 0,
        output_cost_per_token: 0,
        ...settings.config,
        model: `openai/${model}`,
        base_url: `${baseUrl}/v1`,
        api_key: key,
        api_mode: 'chat',
      },
      agent: { mcp_config: Object.fromEntries(servers) as unknown, system_prompt: prompt },
      condenser: settings.condenser ?? true,
      terminal: settings.terminal ?? 'subprocess',
      skills: hasSkills ? `${home}/${SKILLS}` : null,
      conversation: { max_iteration_per_run: iterations, stuck_detection: detection },
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
