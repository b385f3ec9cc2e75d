/** Program of a process that builds the sessions of a node. Its argument is `BuildSettings` as JSON. */
import { offerToOutOfMemory } from '../lib/process/oom-score.ts'
import { createBuilds } from '../node/build/loaded-record.ts'
import { serveBuilds } from '../node/build/serve-builds.ts'
import type { SessionBuilds } from '../node/build/session-build.ts'
import { createCallLogReader } from '../store/call-log/reader.ts'
import { createBuilder } from '../trajectory/create-builder.ts'
import { CallFilter } from '../trajectory/select-calls.ts'
import { loadSessionReaders } from './session-readers.ts'

export interface BuildSettings {
  /** Folder of the sessions' logs. */
  sessions: string
  /** Real paths of the modules that tasks may load. */
  modules: readonly string[]
}

async function open({ sessions, modules }: BuildSettings): Promise<SessionBuilds> {
  // When memory runs out, the kernel kills this process before the node.
  offerToOutOfMemory()
  return createBuilds({
    reader: createCallLogReader({ dir: sessions }),
    createBuilder: (spec) => createBuilder(spec, { allowed: modules }),
    readersOf: await loadSessionReaders(),
    filter: CallFilter.parse({}),
    weighting: 'tokens',
  })
}

serveBuilds(process, open(JSON.parse(process.argv[2] ?? '') as BuildSettings))
