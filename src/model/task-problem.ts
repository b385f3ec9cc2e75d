import type * as z from 'zod'

/** A problem of a task, found before its sessions start. */
export interface TaskProblem {
  /** Path in the task: `['runtime', 'prepare', 0, 'source']`. */
  path: readonly (string | number)[]
  message: string
}

/** Formats a problem: `tasks[2].evaluator.strategy: …`. A single task has no `lead`. */
export function renderProblem({ path, message }: TaskProblem, lead: TaskProblem['path'] = []): string {
  const steps = [...lead, ...path].map((step) => (typeof step === 'number' ? `[${step}]` : `.${step}`))
  const field = steps.join('').replace(/^\./, '')
  return field === '' ? message : `${field}: ${message}`
}

export function toTaskProblems({ issues }: z.ZodError): TaskProblem[] {
  return issues.map(({ path, message }) => ({
    path: path.map((step) => (typeof step === 'number' ? step : String(step))),
    message,
  }))
}
