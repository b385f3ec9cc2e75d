import type { RuntimeSpec, TaskRequest } from './task.ts'

/** Returns the network that a task requests; undefined if it requests none. */
export function requestedNetwork(spec: RuntimeSpec | null | undefined): 'allow' | 'open' | 'none' | undefined {
  if (spec?.allow_hosts != null) return 'allow'
  if (spec?.allow_internet != null) return spec.allow_internet ? 'open' : 'none'
  if (spec?.network == null || spec.network === '') return undefined
  return spec.network === 'none' ? 'none' : 'open'
}

export const NO_NETWORK_NOTICE =
  'The task sets none of runtime.allow_internet, runtime.allow_hosts and runtime.network, so its sandboxes reach only the ' +
  'model. Set runtime.allow_internet to true for steps such as npm install.'

/**
 * Returns notices about a valid task that behaves differently in NVIDIA Polar. Empty if its commands cannot be
 * affected.
 */
export function noticesOf({ runtime }: Pick<TaskRequest, 'runtime'>): string[] {
  const steps = [...(runtime?.prepare ?? []), ...(runtime?.eval_prepare ?? [])]
  const hasCommands = steps.some(({ type }) => type === 'exec')
  return hasCommands && requestedNetwork(runtime) === undefined ? [NO_NETWORK_NOTICE] : []
}
