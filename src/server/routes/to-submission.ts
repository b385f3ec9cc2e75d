import type { SubmitRequest } from '../../api/routes/submit-request.ts'
import { affinityOf } from '../../model/affinity.ts'
import type { TaskRequest } from '../../model/task.ts'
import type { Submission } from '../../store/dispatch/port.ts'

/** Separates the fields that only the server uses from the task that nodes receive. */
export function toSubmission(request: SubmitRequest): Submission {
  const { requires, max_failures, policy_version, staleness_limit, ...task } = request
  return {
    task: withAgentBudget(task),
    requires: toLabels(request, requires),
    affinity: affinityOf(request),
    maxFailures: max_failures,
    policyVersion: policy_version ?? undefined,
    stalenessLimit: staleness_limit ?? undefined,
  }
}

/** Labels that a node must have: those of the task, and those that its sandbox requires. */
function toLabels({ runtime }: SubmitRequest, requires: readonly string[]): string[] {
  const labels = new Set(requires)
  const backend = runtime?.import_path == null ? (runtime?.backend ?? (runtime?.image != null ? 'docker' : null)) : null
  if (backend !== null) labels.add(`runtime:${backend}`)
  if ((runtime?.gpus ?? 0) > 0) labels.add('gpu')
  return [...labels].sort()
}

/** NVIDIA Polar stores the agent's time limit in the metadata; our own field has precedence. */
function withAgentBudget(task: TaskRequest): TaskRequest {
  const agent = task.metadata['agent_timeout']
  if (typeof agent !== 'number' || task.budgets?.agent != null) return task
  return { ...task, budgets: { ...task.budgets, agent } }
}
