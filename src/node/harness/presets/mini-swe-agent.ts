import * as z from 'zod'
import { loadProgram } from '../../../lib/process/load-program.ts'
import { mergeTrees } from '../../../lib/fs/merge-trees.ts'
import { answerTokens, defineHarness, extraConfig, toJsonFile } from './harness.ts'

const MiniSweAgentSettings = z.strictObject({
  step_limit: z.int().positive().optional().describe('Maximum model calls. Absent: no limit'),
  cost_limit: z
    .number()
    .min(0)
    .optional()
    .describe('In dollars, by the prices of LiteLLM; a model unknown to LiteLLM costs nothing. Absent or 0: no limit'),
  model_retry_attempts: z.int().positive().optional().describe('Maximum attempts of one model call'),
  sampling_seed: z.int().optional().describe('Sampling seed of every request'),
  command_timeout_seconds: z.int().positive().optional().describe('Time limit of one command of the agent'),
  model_kwargs: z.record(z.string(), z.json()).optional().describe('Additional fields of every request'),
  config: extraConfig(['run', 'model']).describe('Additional config keys, which override those of mini.yaml'),
})

/** The command `mini` accepts the task only as an argument. This program reads it from a file and maps endings to exit codes. */
const runner = loadProgram(new URL('./run-mini-swe-agent.py', import.meta.url))

export const miniSweAgent = defineHarness({
  name: 'mini_swe_agent',
  title: 'mini-swe-agent',
  package: {
    registry: 'pypi',
    name: 'mini-swe-agent',
    version: '2.4.6',
    pins: ['litellm==1.81.0'],
    imports: {
      modules: [
        'minisweagent.agents.default',
        'minisweagent.config',
        'minisweagent.environments.local',
        'minisweagent.models.litellm_model',
        'minisweagent.utils.serialize',
      ],
      env: { LITELLM_LOCAL_MODEL_COST_MAP: 'True', MSWEA_CONFIGURED: 'true', MSWEA_SILENT_STARTUP: '1' },
    },
  },
  command: 'mini',
  program: () => ({ kind: 'python', paths: ['python/bin/python3'] }),
  dialect: 'openai-chat',
  hasSubAgents: false,
  instruction: 'file',
  mcpTransports: [],
  settings: MiniSweAgentSettings,
  configure({ baseUrl, key, model, contextTokens, home, instructionFile }, settings) {
    const config = {
      agent: {
        agent_class: 'default',
        cost_limit: settings.cost_limit ?? 0,
        step_limit: settings.step_limit ?? 0,
        output_path: `${home}/.polar/mini-trajectory.json`,
      },
      environment: { environment_class: 'local', timeout: settings.command_timeout_seconds },
      model: {
        model_class: 'litellm',
        model_name: `openai/${model}`,
        cost_tracking: 'ignore_errors',
        model_kwargs: {
          max_tokens: answerTokens(contextTokens),
          ...settings.model_kwargs,
          ...(settings.sampling_seed === undefined ? {} : { seed: settings.sampling_seed }),
        },
      },
    }
    return {
      files: {
        '.polar/run-mini.py': runner(),
        '.polar/mini.yaml': toJsonFile(mergeTrees(config, settings.config ?? {})),
      },
      env: {
        OPENAI_BASE_URL: `${baseUrl}/v1`,
        OPENAI_API_BASE: `${baseUrl}/v1`,
        OPENAI_API_KEY: key,
        POLAR_INSTRUCTION_FILE: instructionFile,
        MSWEA_CONFIGURED: 'true',
        MSWEA_SILENT_STARTUP: '1',
        MSWEA_COST_TRACKING: 'ignore_errors',
        ...(settings.model_retry_attempts === undefined
          ? {}
          : { MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT: String(settings.model_retry_attempts) }),
        // Otherwise LiteLLM downloads a price list at start.
        LITELLM_LOCAL_MODEL_COST_MAP: 'True',
      },
      args: [`${home}/.polar/run-mini.py`],
    }
  },
  exitCodes: { 1: 'gave-up', 53: 'limit-reached' },
})
