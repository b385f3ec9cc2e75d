/** A node that has joined a server: `<server> <engine> <name> <width of each stage>`. */
import { WorkerStack } from '../../test/support/worker-stack.ts'
import { serveParent } from './child.ts'

const [url, upstream, nodeId, given] = process.argv.slice(2)
const width = Number(given)
const member = await WorkerStack.start({
  url: url!,
  upstream: upstream!,
  nodeId: nodeId!,
  runtime: 'local',
  widths: { init: width, ready: width, run: width, postrun: width, backlog: width },
  worker: { retention: { sessions: 0 } },
})
serveParent({}, { stop: () => member[Symbol.asyncDispose]() })
