// A node that kills itself at the given moment: node-process.ts DIR STATE DELAY_MS ORDER MODULE
import { setTimeout as sleep } from 'node:timers/promises'
import { SessionOrder } from '../../src/model/session-order.ts'
import { ANSWER_SCRIPT } from './answer-script.ts'
import { NodeStack } from './node-stack.ts'

const [dir, state, delay, order, ...modules] = process.argv.slice(2)

await using stack = await NodeStack.start({
  dir: dir!,
  nodeId: 'crashing',
  modules,
  script: ANSWER_SCRIPT,
  onEvent({ status }) {
    if (status !== state) return
    if (Number(delay) > 0) setTimeout(() => process.kill(process.pid, 'SIGKILL'), Number(delay))
    else process.kill(process.pid, 'SIGKILL')
  },
})
await stack.node.submit(SessionOrder.parse(JSON.parse(order!))).outcome
await sleep(60_000)
