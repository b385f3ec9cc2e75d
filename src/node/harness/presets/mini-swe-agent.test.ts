import { expect, test } from 'vitest'
import { parse } from 'yaml'
import { describeHarness, exampleSetup } from './harness.contract.ts'
import { miniSweAgent } from './mini-swe-agent.ts'

describeHarness(miniSweAgent)

test("NVIDIA Polar's mini-swe-agent settings become config keys and variables", () => {
  const settings = { cost_limit: 2.5, sampling_seed: 7, model_retry_attempts: 3 }
  const { files, env } = miniSweAgent.configure({ ...exampleSetup, settings })
  expect(parse(files['.polar/mini.yaml'] ?? '')).toMatchObject({
    agent: { cost_limit: 2.5 },
    model: { model_kwargs: { seed: 7 } },
  })
  expect(env['MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT']).toBe('3')
})

test('mini-swe-agent reads the gateway from variables and the task from a file', () => {
  const settings = { step_limit: 30, command_timeout_seconds: 60, model_kwargs: { temperature: 1 } }
  const { files, env, args } = miniSweAgent.configure({ ...exampleSetup, settings })
  expect(args).toEqual(['/sandbox/home/.polar/run-mini.py'])
  expect(env).toMatchObject({
    OPENAI_API_BASE: 'http://127.0.0.1:4000/s/ses_1/v1',
    POLAR_INSTRUCTION_FILE: '/sandbox/home/.polar/instruction.md',
    LITELLM_LOCAL_MODEL_COST_MAP: 'True',
  })
  expect(parse(files['.polar/mini.yaml'] ?? '')).toMatchObject({
    agent: { agent_class: 'default', cost_limit: 0, step_limit: 30 },
    environment: { timeout: 60 },
    model: { model_name: 'openai/Qwen/Qwen3-8B', model_kwargs: { max_tokens: 32_000, temperature: 1 } },
  })
})
