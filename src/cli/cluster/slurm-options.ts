import type { SlurmConfig } from '../../config/cluster-section.ts'

/** Environment variables that all jobs get. Others, which may contain secrets, are not passed. */
const GENERAL_ENVIRONMENT = ['PATH', 'HOME', 'USER', 'LOGNAME', 'SHELL', 'LANG']

/** Returns the options of sbatch for one machine. */
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
    // Names only: sbatch reads the values from its own environment.
    ['export', [...new Set([...GENERAL_ENVIRONMENT, ...environment])].join(',')],
  ]
  return named.flatMap(([name, value]) => (value === undefined ? [] : [`--${name}=${value}`]))
}
