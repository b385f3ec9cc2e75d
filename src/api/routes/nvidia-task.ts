import { RolloutError } from '../../model/failure.ts'
import type { Loosened } from '../loosen.ts'

type Fields = Readonly<Record<string, unknown>>

/**
 * Translates fields of NVIDIA Polar's tasks that our schema does not have and that change what a session does, or rejects the
 * task. Other unknown fields are ignored with a warning.
 */
export function adaptNvidiaTask(task: unknown): Loosened {
  if (!isFields(task) || !isFields(task['runtime'])) return { value: task, warnings: [] }
  const warnings: string[] = []
  const { direct_exec_init_command: init, internet_volumes: volumes, ...runtime } = task['runtime']
  if (init != null) warnings.push(readInitCommand(runtime))
  const mounted = Array.isArray(volumes) && volumes.length > 0 ? withVolumes(runtime, volumes, warnings) : runtime
  return { value: { ...task, runtime: mounted }, warnings }
}

/** NVIDIA Polar runs the command only for Apptainer without an instance; its Docker sandboxes ignore it. */
function readInitCommand({ backend }: Fields): string {
  if (backend == null || backend === 'docker') {
    return 'body.runtime.direct_exec_init_command: ignored, as NVIDIA Polar does for docker'
  }
  const message =
    'runtime.direct_exec_init_command is not supported: sandboxes have no shell that runs for the whole session. ' +
    'Put the command into runtime.prepare, or into the command of the agent.'
  throw new RolloutError('request.malformed', message, {
    status: 422,
    param: 'body.runtime.direct_exec_init_command',
  })
}

/** NVIDIA Polar mounts these volumes only if internet access is allowed. */
function withVolumes(runtime: Fields, volumes: readonly unknown[], warnings: string[]): Fields {
  if (runtime['allow_internet'] === false) {
    warnings.push('body.runtime.internet_volumes: not mounted, because allow_internet is false')
    return runtime
  }
  const kwargs = isFields(runtime['kwargs']) ? runtime['kwargs'] : {}
  const others = Array.isArray(kwargs['volumes']) ? (kwargs['volumes'] as unknown[]) : []
  return { ...runtime, kwargs: { ...kwargs, volumes: [...others, ...volumes] } }
}

function isFields(value: unknown): value is Fields {
  return typeof value === 'object' && value !== null && !Array.isArray(value)
}
