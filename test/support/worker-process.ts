// A node that has joined a server, in a separate process: worker-process.ts OPTIONS, as JSON
// Prints "ready" and a line per change of a session. SIGTERM drains the node; a second SIGTERM releases all leases.
import type { WorkerStackOptions } from './worker-stack.ts'
import { WorkerStack } from './worker-stack.ts'

const options = JSON.parse(process.argv[2]!) as WorkerStackOptions
const say = (line: unknown): void => void process.stdout.write(`${JSON.stringify(line)}\n`)

await using stack = await WorkerStack.start({
  ...options,
  onEvent: ({ session_id, attempt, status }) => say({ session_id, attempt, status }),
})
process.on('SIGTERM', () => void (stack.worker.metrics.isDraining ? stack.worker.release() : stack.worker.drain()))
say('ready')
await stack.worker.ended
say('ended')
