// The helper process of `Spawner`. Ends with its parent.
import type { FromSpawner, ToSpawner } from './spawner.ts'
import { startChildren } from './start-children.ts'

const report = (message: FromSpawner): void => {
  if (process.connected) process.send!(message)
}
const start = startChildren(report)
process.on('message', (message: ToSpawner) => start(message))
process.on('disconnect', () => process.exit())
// A signal from the terminal is meant for the parent.
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP'] as const) process.on(signal, () => {})
report({ type: 'ready' })
