/** `node trajectory-memory.ts BUILDER|none LENGTH`: prints the recorded bytes and the peak memory of this process. */
import { agentSession } from './agent-session.ts'
import { buildAll, type BuilderKind } from './build-all.ts'

const [kind = 'none', length = '0'] = process.argv.slice(2)
const session = agentSession({ turns: 500, length: Number(length), isShared: false })
const recorded = session.turns.reduce((sum, { response }) => sum + (response?.promptIds.byteLength ?? 0), 0)
if (kind !== 'none') buildAll(session, kind as BuilderKind)
console.log(JSON.stringify({ recorded, peak: process.resourceUsage().maxRSS * 1024 }))
