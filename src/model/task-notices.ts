import type { RuntimeSpec, TaskRequest } from './task.ts'

/** What a task says of its network, in one word; undefined when it says nothing. */
export function askedNetwork(spec: RuntimeSpec | null | undefined): 'allow' | 'open' | 'none' | undefined {
  if (spec?.allow_hosts != null) return 'allow'
  if (spec?.allow_internet != null) return spec.allow_internet ? 'open' : 'none'
  if (spec?.network == null || spec.network === '') return undefined
  return spec.network === 'none' ? 'none' : 'open'
}

export const NO_NETWORK_NOTICE =
  'The task sets none of runtime.allow_internet, runtime.allow_hosts and runtime.network, so its sandboxes reach the model and ' +
  'nothing else. Set runtime.allow_internet to true for steps such as npm install.'

/**
 * What a task that is valid may still surprise its author with, where NVIDIA Polar behaves differently. Empty for a task
 * whose commands cannot notice.
 */
export function noticesOf({ runtime }: Pick<TaskRequest, 'runtime'>): string[] {
  const steps = [...(runtime?.prepare ?? []), ...(runtime?.eval_prepare ?? [])]
  const hasCommands = steps.some(({ type }) => type === 'exec')
  return hasCommands && askedNetwork(runtime) === undefined ? [NO_NETWORK_NOTICE] : []
}
