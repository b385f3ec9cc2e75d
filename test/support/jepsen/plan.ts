import type { TaskPlan } from './history.ts'
import type { Chance } from './random.ts'
import { witnessAgent } from './witness.ts'

/** A task, and the trainer's actions on it. */
export interface TrainerPlan extends TaskPlan {
  body: Record<string, unknown> & { task_id: string }
  /** Milliseconds after the submission; absent: never. */
  cancelAfterMs?: number
  /** Whether the task fails first and is then retried. */
  doesRetry: boolean
  doesFollow: boolean
}

export interface PlanOptions {
  sessions: number
  callbackUrl: string
  graderUrl: string
  /** Variables of every agent, by which leaked processes are found. */
  env: Readonly<Record<string, string>>
  runtimes: readonly string[]
  chance: Chance
}

const SIZES = [60, 1, 16, 4, 24, 8, 2, 40, 16, 3, 8, 1, 16, 12, 5, 30]

/** Plans tasks of all sizes with a given total number of sessions. */
export function planTasks(options: PlanOptions): TrainerPlan[] {
  const plans: TrainerPlan[] = []
  for (let left = options.sessions; left > 0;) {
    const samples = Math.min(left, SIZES[plans.length % SIZES.length]!)
    plans.push(planTask(`jepsen-${plans.length}`, samples, options))
    left -= samples
  }
  return plans
}

function planTask(taskId: string, samples: number, options: PlanOptions): TrainerPlan {
  const { chance } = options
  const doesRetry = chance.happens(0.2)
  const earlyStop = !doesRetry && samples > 4 && chance.happens(0.25) ? Math.ceil(samples / 2) : undefined
  const cancelAfterMs = !doesRetry && chance.happens(0.12) ? chance.between(200, 5000) : undefined
  // Sessions of a task that is retried fail permanently at first; other sessions may be refilled without limit.
  const maxFailures = doesRetry ? 1 : 100
  const wantsCallback = chance.happens(0.6)
  const seconds = chance.pick([0, 0, 0.1, 0.3, 1, 3])
  const exitCode = chance.happens(0.15) ? 3 : 0
  const isGraded = chance.happens(0.6)
  const runtime = chance.pick(options.runtimes)
  return {
    taskId,
    samples,
    maxFailures,
    wantsCallback,
    doesRetry,
    doesFollow: chance.happens(0.4),
    ...(earlyStop !== undefined && { earlyStop }),
    ...(cancelAfterMs !== undefined && { cancelAfterMs }),
    body: {
      task_id: taskId,
      instruction: 'Say who you are.',
      num_samples: samples,
      timeout_seconds: 60,
      runtime: { backend: runtime, env: options.env },
      agent: { harness: 'shell', custom_shell: { command: witnessAgent({ seconds, exitCode }) } },
      builder: { strategy: 'per_request' },
      ...(isGraded && { evaluator: { strategy: 'http', config: { url: options.graderUrl } } }),
      ...(wantsCallback && { callback_url: `${options.callbackUrl}/${taskId}` }),
      ...(earlyStop !== undefined && { early_stop_min_usable_sessions: earlyStop }),
      dispatch_priority: chance.pick([0, 0, 0, 50, 100]),
      max_failures: maxFailures,
    },
  }
}
