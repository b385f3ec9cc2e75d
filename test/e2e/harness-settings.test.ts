import { mkdtemp, rm } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { harnessPlaces } from '../../src/compose/harness-folders.ts'
import { readRequest } from '../../src/compose/read-request.ts'
import { findHarness } from '../../src/node/harness/find-harness.ts'
import { harnesses } from '../../src/node/harness/presets/index.ts'
import { whyNoHarness } from '../support/installed-harness.ts'
import type { Scenario } from '../support/harness-scenarios.ts'
import { runHarness } from '../support/harness-run.ts'

let scratch: string
beforeAll(async () => {
  scratch = await mkdtemp(join(tmpdir(), 'polar-settings-'))
})
afterAll(() => rm(scratch, { recursive: true, force: true }))

const scenario: Scenario = {
  name: 'settings',
  prompt: 'Say something.',
  steps: () => [{ text: 'FINAL: something.' }],
  files: {},
  says: 'FINAL: something.',
  images: false,
}

const REMARK = 'Mind the purple giraffe.'

interface Example {
  settings: Record<string, unknown>
  /** Parts of the request that the CLI sends with these settings. */
  seen?: readonly (string | RegExp)[]
  /** A tool that the CLI does not offer with these settings. */
  withoutTool?: string
}

const examples: Readonly<Record<string, Example>> = {
  codex: {
    settings: {
      reasoning_effort: 'high',
      reasoning_summary: 'concise',
      developer_instructions: REMARK,
      auto_compact_tokens: 100_000,
      stream_idle_timeout_ms: 60_000,
      features: { multi_agent: false },
      config: { hide_agent_reasoning: true, shell_environment_policy: { inherit: 'all' } },
      extra_args: ['--strict-config'],
    },
    seen: [REMARK, /"effort":\s*"high"/],
    withoutTool: 'multi_agent_v1__spawn_agent',
  },
  claude_code: {
    settings: {
      max_turns: 3,
      effort: 'low',
      append_system_prompt: REMARK,
      allowed_tools: ['Bash(git *)'],
      disallowed_tools: ['Workflow'],
      max_budget_usd: 5,
    },
    seen: [REMARK, /"effort":\s*"low"/],
    withoutTool: 'Workflow',
  },
  gemini_cli: {
    settings: {
      max_session_turns: 5,
      compression_threshold: 0.7,
      exclude_tools: ['web_fetch'],
      config: { ui: { hideBanner: true } },
    },
    withoutTool: 'web_fetch',
  },
  qwen_code: {
    settings: {
      max_session_turns: 5,
      max_tool_calls: 50,
      max_wall_time: '5m',
      append_system_prompt: REMARK,
      exclude_tools: ['agent'],
    },
    seen: [REMARK],
    withoutTool: 'agent',
  },
  opencode: {
    settings: { steps: 5, tools: { webfetch: false }, instructions: ['NOTES.md'] },
    withoutTool: 'webfetch',
  },
  pi: {
    settings: {
      thinking: 'high',
      append_system_prompt: REMARK,
      exclude_tools: ['edit'],
      config: { retry: { maxRetries: 1 } },
    },
    seen: [REMARK, /"reasoning_effort":\s*"high"/],
    withoutTool: 'edit',
  },
}

test.for(harnesses.filter(({ name }) => name in examples))('$title applies its settings', async (harness, context) => {
  const folders = harnessPlaces(undefined, process.env)
  if ((await findHarness(harness, folders)) === undefined) {
    context.skip(whyNoHarness(harness))
  }
  const { settings, seen = [], withoutTool } = examples[harness.name]!
  const run = await runHarness(harness, scenario, { scratch, harnessDir: folders.dir, agent: { settings } })
  expect(run.exitCode, run.stderr).toBe(0)
  expect(run.stdout.trimEnd().endsWith(scenario.says), run.stdout).toBe(true)
  const [turn] = run.session.turns
  for (const text of seen) expect(turn?.request).toMatch(text)
  const tools = (turn && readRequest(turn))?.tools.map(({ name }) => name)
  expect(tools?.length).toBeGreaterThan(2)
  expect(tools).not.toContain(withoutTool)
})
