// Opens an engine, a gateway, a node and a server in this process, runs a task and prints the rewards.
import { openUp } from 'polar-rl'

const evaluator = { strategy: 'command', config: { command: 'grep -q "Hello, world" hello.py' } }
const instruction = 'SCRIPT:hello Write hello.py, which prints "Hello, world", and run it.'
const task = { task_id: 'hello', instruction, num_samples: 2, agent: { harness: 'pi' }, evaluator }

await using polar = await openUp({ data: '.polar/library', server: { port: 0 }, engine: { script: 'hello.yaml' } })
await polar.client.submitTask({ body: task })
const results = polar.client.streamTaskResults({ params: { task_id: task.task_id }, query: { follow: true } })
for await (const { session_id: id, trajectory } of results) console.log(id, trajectory.traces[0]?.reward)
