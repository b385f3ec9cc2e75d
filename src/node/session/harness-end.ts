import { RolloutError } from '../../model/failure.ts'
import { endOf, type Harness } from '../harness/presets/harness.ts'
import type { AgentRun } from './attribute-ending.ts'

type End = Pick<AgentRun, 'end' | 'suspicion'>

/** The end of a harness whose sandbox can no longer run commands. */
export const SANDBOX_GONE: End = {
  end: 'gave-up',
  suspicion: new RolloutError('runtime.gone', 'The sandbox ended while the harness ran in it.').failure,
}

/** An agent can make its harness end with any exit code, so an exit code that means "not started" is only a suspicion. */
export function toEnd(
  harness: Pick<Harness, 'title' | 'package' | 'exitCodes'>,
  exitCode: number | null,
  message: string,
): End {
  if (exitCode === null) return { end: 'gave-up' }
  if (harness.package !== undefined && (exitCode === 126 || exitCode === 127)) {
    const text = `${harness.title} could not be started (${exitCode}): ${message}`
    return { end: 'gave-up', suspicion: new RolloutError('harness.not-found', text).failure }
  }
  const end = endOf(harness, exitCode)
  switch (end) {
    case 'finished':
    case 'limit-reached':
    case 'gave-up':
      return { end }
    case 'interrupted':
      return { end: 'gave-up' }
    case 'bad-setup': {
      const text = `${harness.title} rejected its configuration (${exitCode}): ${message}`
      return { end: 'gave-up', suspicion: new RolloutError('harness.bad-setup', text).failure }
    }
  }
}
