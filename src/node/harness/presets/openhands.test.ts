import { expect, test } from 'vitest'
import { describeHarness, exampleServers, exampleSetup } from './harness.contract.ts'
import { openhands } from './openhands.ts'

describeHarness(openhands)

function configOf(setup: Parameters<typeof openhands.configure>[0]): unknown {
  return JSON.parse(openhands.configure(setup).files['.polar/openhands.json'] ?? '')
}

test('OpenHands reads the gateway and the key from a file, so that the shell of the agent has neither', () => {
  const { env, args } = openhands.configure(exampleSetup)
  expect(env).toEqual({ POLAR_INSTRUCTION_FILE: '/sandbox/home/.polar/instruction.md' })
  expect(args).toEqual(['/sandbox/home/.polar/run-openhands.py'])
  expect(configOf(exampleSetup)).toMatchObject({
    llm: {
      model: 'openai/Qwen/Qwen3-8B',
      base_url: 'http://127.0.0.1:4000/s/ses_1/v1',
      api_key: 'sk-polar-secret',
      api_mode: 'chat',
      max_input_tokens: 99_072,
      max_output_tokens: 32_000,
      disable_vision: false,
    },
    condenser: true,
    terminal: 'subprocess',
    skills: null,
    conversation: {},
  })
})

test('OpenHands settings become fields of its model, agent and conversation', () => {
  const settings = {
    max_iterations: 8,
    condenser: false,
    stuck_detection: false,
    system_prompt: 'Be brief.',
    reasoning_effort: 'low',
    config: { temperature: 0.7 },
  }
  expect(configOf({ ...exampleSetup, settings, mcpServers: exampleServers, hasSkills: true })).toMatchObject({
    llm: { temperature: 0.7, reasoning_effort: 'low' },
    agent: {
      system_prompt: 'Be brief.',
      mcp_config: {
        words: { transport: 'stdio', command: 'word-server' },
        'old-news': { transport: 'sse', url: 'http://127.0.0.1:9/sse' },
        news_2: { transport: 'streamable-http' },
      },
    },
    condenser: false,
    skills: '/sandbox/home/.openhands/skills',
    conversation: { max_iteration_per_run: 8, stuck_detection: false },
  })
  expect(() => configOf({ ...exampleSetup, settings: { config: { base_url: 'http://x' } } })).toThrow('set by polar')
})
