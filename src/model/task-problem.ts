import type * as z from 'zod'

/** A mistake in a task, found before a session of it starts. */
export interface TaskProblem {
  /** Where it is in the task: `['runtime', 'prepare', 0, 'source']`. */
  path: readonly (string | number)[]
  message: string
}

/** `tasks[2].evaluator.strategy: …`; a task that is alone has no `lead`. */
export function renderProblem({ path, message }: TaskProblem, lead: TaskProblem['path'] = []): string {
  const steps = [...lead, ...path].map((step) => (typeof step === 'number' ? `[${step}]` : `.${step}`))
  const place = steps.join('').replace(/^\./, '')
  return place === '' ? message : `${place}: ${message}`
}

export function toTaskProblems({ issues }: z.ZodError): TaskProblem[] {
  return issues.map(({ path, message }) => ({
    path: path.map((step) => (typeof step === 'number' ? step : String(step))),
    message,
  }))
}
