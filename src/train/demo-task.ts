import type * as z from 'zod'
import type { SubmitRequest } from '../api/routes/submit-request.ts'
import { SEED_BASE_FIELD } from '../model/sample-seed.ts'
import { toolCallText } from './tool-call-reward.ts'

/** Folders that the tasks ask for. */
const FOLDERS = ['docs', 'lib', 'notes', 'music']

/** Two examples of a request and its answer, then the request: make this call. */
function instructionFor(folder: string): string {
  const examples = ['src', 'test'].map((path) => `user:\n${toolCallText(path)}\nassistant:\n${toolCallText(path)}\n\n`)
  return `${examples.join('')}user:\n${toolCallText(folder)}`
}

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

/** Longest answer: the asked call has about 40 tokens. */
const ANSWER_TOKENS = 44

/**
 * A task of the demo: pi must list a folder by its tool `ls`. The frozen model begins a call in about every second session, and
 * then mostly repeats the folder of an example.
 */
export function toDemoTask(options: DemoTaskOptions): z.input<typeof SubmitRequest> {
  const { seed, step, index, tasksPerStep, samples, version, maxLag } = options
  const number = (step - 1) * tasksPerStep + index
  const folder = FOLDERS[number % FOLDERS.length]!
  return {
    task_id: `train-demo-${seed}-${String(step).padStart(3, '0')}-${index}`,
    instruction: instructionFor(folder),
    num_samples: samples,
    agent: {
      harness: 'pi',
      settings: {
        tools: ['ls'],
        system_prompt: 'You list folders.',
        thinking: 'off',
        config: { compaction: { enabled: false }, retry: { enabled: false } },
        extra_args: ['--no-context-files', '--no-skills', '--no-extensions', '--no-prompt-templates', '--no-themes'],
      },
    },
    runtime: {
      allow_internet: false,
      prepare: [{ type: 'exec', command: `mkdir ${folder} && touch ${folder}/a.txt` }],
    },
    builder: { strategy: 'prefix_merging' },
    evaluator: { strategy: options.evaluator, config: { path: folder } },
    sampling: { temperature: 1, max_tokens: ANSWER_TOKENS },
    // Sample i has the seed of the task plus i.
    metadata: { [SEED_BASE_FIELD]: seed * 1_000_000 + number * 1000 },
    policy_version: version,
    staleness_limit: maxLag,
  }
}
