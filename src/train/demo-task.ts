import type * as z from 'zod'
import type { SubmitRequest } from '../api/routes/submit-request.ts'
import { SEED_BASE_FIELD } from '../model/sample-seed.ts'
import { bracketed } from './format-reward.ts'

/** Words that the tasks ask for. */
const WORDS = ['docs', 'music']

/** Two examples of a request and its answer, then the request. */
function instructionFor(word: string): string {
  const examples = ['src', 'test'].map((each) => `user:\n${each}\nassistant:\n${bracketed(each)}\n\n`)
  return `${examples.join('')}user:\n${word}`
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

/** Longest answer: the asked one has 6 tokens with its end. */
const ANSWER_TOKENS = 8

/**
 * A task of the demo: answer with the word of the request in brackets, as two examples show. The frozen model does so in few
 * sessions; it mostly writes about the request, or repeats an example.
 */
export function toDemoTask(options: DemoTaskOptions): z.input<typeof SubmitRequest> {
  const { seed, step, index, tasksPerStep, samples, version, maxLag } = options
  const number = (step - 1) * tasksPerStep + index
  const word = WORDS[number % WORDS.length]!
  return {
    task_id: `train-demo-${seed}-${String(step).padStart(3, '0')}-${index}`,
    instruction: instructionFor(word),
    num_samples: samples,
    agent: {
      harness: 'pi',
      settings: {
        system_prompt: 'You answer in brackets.',
        thinking: 'off',
        config: { compaction: { enabled: false }, retry: { enabled: false } },
        extra_args: [
          '--no-tools',
          '--no-context-files',
          '--no-skills',
          '--no-extensions',
          '--no-prompt-templates',
          '--no-themes',
        ],
      },
    },
    runtime: { allow_internet: false },
    builder: { strategy: 'prefix_merging' },
    evaluator: { strategy: options.evaluator, config: { word } },
    sampling: { temperature: 1, max_tokens: ANSWER_TOKENS },
    // Sample i has the seed of the task plus i.
    metadata: { [SEED_BASE_FIELD]: seed * 1_000_000 + number * 1000 },
    policy_version: version,
    staleness_limit: maxLag,
  }
}
