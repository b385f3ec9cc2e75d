import type { SubmitRequest } from '../../api/routes/submit-request.ts'
import { affinityOf } from '../../model/affinity.ts'
import type { TaskRequest } from '../../model/task.ts'
import type { Submission } from '../../store/dispatch/port.ts'

/** What was submitted, as dispatch wants it: what is the server's own is taken off the task that nodes are given. */
export function toSubmission(request: SubmitRequest): Submission {
  const { requires, max_failures, policy_version, staleness_limit, ...task } = request
  return {
    task: withAgentBudget(task),
    requires: toLabels(request, requires),
    affinity: affinityOf(request),
    maxFailures: max_failures,
    ...(policy_version != null && { policyVersion: policy_version }),
    ...(staleness_limit != null && { stalenessLimit: staleness_limit }),
  }
}

/** What a node must have: what the task says itself, and what follows from the sandbox it asks for. */
function toLabels({ runtime }: SubmitRequest, requires: readonly string[]): string[] {
  const labels = new Set(requires)
  const backend = runtime?.import_path == null ? (runtime?.backend ?? (runtime?.image != null ? 'docker' : null)) : null
  if (backend !== null) labels.add(`runtime:${backend}`)
  if ((runtime?.gpus ?? 0) > 0) labels.add('gpu')
  return [...labels].sort()
}

/** NVIDIA Polar keeps the agent's own time in the metadata; what our own field says comes first. */
function withAgentBudget(task: TaskRequest): TaskRequest {
  const agent = task.metadata['agent_timeout']
  if (typeof agent !== 'number' || task.budgets?.agent != null) return task
  return { ...task, budgets: { ...task.budgets, agent } }
}
