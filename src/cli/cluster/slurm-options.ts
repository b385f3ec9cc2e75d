import type { SlurmConfig } from '../../config/cluster-section.ts'

/** What of the environment jobs are given, by name. Everything else, and whatever secrets are in it, stays here. */
const USUAL_ENVIRONMENT = ['PATH', 'HOME', 'USER', 'LOGNAME', 'SHELL', 'LANG']

/** Options of sbatch for one machine. */
export function toOptions(config: SlurmConfig, environment: readonly string[]): string[] {
  const { partition, account, qos, time, cpus, memory, gres } = config
  const named: readonly (readonly [name: string, value: string | number | undefined])[] = [
    ['partition', partition],
    ['account', account],
    ['qos', qos],
    ['time', time],
    ['nodes', 1],
    ['ntasks', 1],
    ['cpus-per-task', cpus],
    ['mem', memory],
    ['gres', gres],
    // Names only: sbatch takes their values from where it is called.
    ['export', [...new Set([...USUAL_ENVIRONMENT, ...environment])].join(',')],
  ]
  return named.flatMap(([name, value]) => (value === undefined ? [] : [`--${name}=${value}`]))
}
