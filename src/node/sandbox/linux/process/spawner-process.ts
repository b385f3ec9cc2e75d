// The small process of `Spawner`. Ends when the larger one does.
import type { FromSpawner, ToSpawner } from './spawner.ts'
import { startChildren } from './start-children.ts'

const tell = (message: FromSpawner): void => {
  if (process.connected) process.send!(message)
}
const start = startChildren(tell)
process.on('message', (message: ToSpawner) => start(message))
process.on('disconnect', () => process.exit())
// An interrupt from a terminal is for whoever started us.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {})
tell({ type: 'ready' })
