import { resolve } from 'node:path'
import { writeFile } from 'node:fs/promises'
import type { Trajectory } from '../../model/trajectory.ts'
import { createCallLogReader } from '../../store/call-log/reader.ts'
import { buildSession, type BuiltSession } from '../../trajectory/build-session.ts'
import { toTrace } from '../../trajectory/to-trace.ts'
import { buildFlags, toBuildOptions } from '../input/build-options.ts'
import { defineCommand, EXIT, option, toggle, type ExitCode } from '../command.ts'
import { formatSummary } from '../views/graph-view.ts'
import { FROM_FLAG, resolveSession } from '../input/resolve-session.ts'
import { print, printJson } from '../views/print.ts'

export const command = defineCommand({
  name: 'build',
  description: 'Build the trajectory of one session, and report which calls are trained and which are excluded.',
  subject: { name: 'session', description: 'Session id, folder of a session, or "last"', default: 'last' },
  flags: {
    from: FROM_FLAG,
    to: option('FILE', "File for the trajectory, in NVIDIA Polar's format"),
    salvage: toggle('Read the intact part of a damaged log'),
    json: toggle('Print summary and exclusions as JSON'),
    ...buildFlags,
  },
  examples: ['polar build last', 'polar build last --splice', 'polar build last --to trajectory.json'],
  async run({ subject, flags }): Promise<ExitCode> {
    const options = await toBuildOptions('build', flags)
    const { dir, id } = await resolveSession(subject, resolve(flags.from))
    const session = await createCallLogReader({ dir }).load(id, { salvage: flags.salvage })
    const built = buildSession(session, options)
    if (flags.to !== undefined) await writeFile(flags.to, `${JSON.stringify(toTrajectory(built))}\n`)
    const { summary, exclusions } = built
    if (flags.json) printJson({ summary, exclusions }, 2)
    else print(formatSummary(summary, exclusions))
    return EXIT.done
  },
})

function toTrajectory(built: BuiltSession): Trajectory {
  const { session, summary, exclusions } = built
  return {
    status: 'COMPLETED',
    metadata: {
      session_id: session.id,
      session_complete: session.complete,
      incomplete_reasons: session.incompleteReasons,
      summary,
      exclusions,
    },
    traces: Array.from(built.samples(), toTrace),
  }
}
