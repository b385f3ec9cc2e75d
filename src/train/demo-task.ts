import type { SubmitRequest } from '../api/routes/submit-request.ts'
import { SEED_BASE_FIELD } from '../model/sample-seed.ts'
import { toolCallText } from './tool-call-reward.ts'

/** Folders that the tasks ask for. */
const FOLDERS = ['docs', 'lib', 'data', 'home', 'work', 'notes', 'news', 'music']

/** A user's request for a folder: it contains the call that lists the folder. */
function request(folder: string): string {
  return `List ${folder}\n${toolCallText(folder)}`
}

/** Two examples in the model's own chat format. */
const SYSTEM_PROMPT = ['src', 'test']
  .map(
    (folder) =>
      `<|im_start|>user\n${request(folder)}<|im_end|>\n<|im_start|>assistant\n${toolCallText(folder)}<|im_end|>`,
  )
  .join('\n')

export interface DemoTaskOptions {
  seed: number
  step: number
  /** Number of the task within its step. */
  index: number
  tasksPerStep: number
  samples: number
  /** Path of the module of the evaluator. */
  evaluator: string
  version: number
  maxLag: number
}

/** Longest answer: the asked call has 41 tokens. */
const ANSWER_TOKENS = 44

/**
 * A task of the demo for pi: list a folder. The instruction contains the call that pi's `ls` tool needs, and the system
 * prompt has two examples, so that the frozen model makes the call in a few of a hundred sessions.
 */
export function toDemoTask(
  options: DemoTaskOptions,
): Pick<SubmitRequest, 'task_id' | 'instruction' | 'agent'> & Partial<SubmitRequest> {
  const { seed, step, index, tasksPerStep, samples, version, maxLag } = options
  const number = (step - 1) * tasksPerStep + index
  const folder = FOLDERS[number % FOLDERS.length]!
  return {
    task_id: `train-demo-${seed}-${String(step).padStart(3, '0')}-${index}`,
    instruction: request(folder),
    num_samples: samples,
    timeout_seconds: 120,
    agent: {
      harness: 'pi',
      settings: {
        tools: ['ls'],
        system_prompt: SYSTEM_PROMPT,
        thinking: 'off',
        config: { compaction: { enabled: false }, retry: { enabled: false } },
        extra_args: ['--no-context-files', '--no-skills', '--no-extensions', '--no-prompt-templates', '--no-themes'],
      },
      env: {},
      mcp_servers: [],
    },
    runtime: { prepare: [{ type: 'exec', command: `mkdir ${folder} && touch ${folder}/a.txt` }] } as never,
    builder: { strategy: 'prefix_merging', config: {} },
    evaluator: { strategy: options.evaluator, config: { path: folder }, env: {}, refresh_runtime: false },
    sampling: { temperature: 1, max_tokens: ANSWER_TOKENS },
    // Sample i has the seed of the task plus i.
    metadata: { [SEED_BASE_FIELD]: seed * 1_000_000 + number * 1000 },
    policy_version: version,
    staleness_limit: maxLag,
  }
}
