import fc from 'fast-check'
import { afterAll, beforeAll, expect, test } from 'vitest'
import { makeTask, startTestServer, TestNode, type TestServer } from '../../../test/support/rollout-server.ts'
import { SseParser } from '../../lib/net/sse.ts'
import type { ServerEvent } from '../../api/routes/server-routes.ts'

let at: TestServer
let node: TestNode
let serial = 0
beforeAll(async () => {
  at = await startTestServer()
  node = await TestNode.join(at.client, 'n1')
})
afterAll(async () => {
  await at?.[Symbol.asyncDispose]()
  expect(at.problems).toEqual([])
})

interface Heard {
  id: string | undefined
  event: ServerEvent
}

/** One connection, read frame by frame. */
async function* connect(query: string, headers: Record<string, string> = {}): AsyncGenerator<Heard> {
  const response = await fetch(`${at.server.url}/events${query}`, { headers })
  expect(response.headers.get('content-type')).toBe('text/event-stream')
  const parser = new SseParser()
  for await (const chunk of response.body!) {
    for (const { id, data } of parser.push(chunk)) yield { id, event: JSON.parse(data) as ServerEvent }
  }
}

const next = async (events: AsyncGenerator<Heard>): Promise<Heard> => (await events.next()).value as Heard
const words = ({ event: { type, data } }: Heard) => [type, data['status']]

test('the stream begins with hello and contains the events of a task and its sessions in order', async () => {
  const id = `t${++serial}`
  const events = connect(`?task_id=${id}`)
  const hello = await next(events)
  expect(hello.event).toMatchObject({ type: 'hello', data: {} })
  expect(hello.id).toMatch(/^\d+-\d+$/)
  await at.client.submitTask({ body: makeTask(id) })
  await at.client.submitTask({ body: makeTask(`${id}-other`) })
  const orders = await node.lease(2)
  const order = orders.find(({ task }) => task.task_id === id)!
  const renewals = [{ session_id: order.sessionId, attempt: 1, status: 'RUNNING' as const }]
  await at.client.renewLeases({ params: node.params, body: { renewals } })
  for (const each of orders) await node.complete(each)
  const heard = [await next(events), await next(events), await next(events), await next(events), await next(events)]
  expect(heard.map(words)).toEqual([
    ['task.created', 'running'],
    ['session.state_changed', 'DISPATCHING'],
    ['session.state_changed', 'RUNNING'],
    ['session.state_changed', 'COMPLETED'],
    ['task.completed', 'completed'],
  ])
  expect(heard.every(({ event }) => Math.abs(event.ts - Date.now() / 1000) < 120)).toBe(true)
  await events.return(undefined)
})

test('a reader that reconnects gets the missed events, by header or query', async () => {
  const id = `t${++serial}`
  const before = connect(`?task_id=${id}`)
  const hello = await next(before)
  await before.return(undefined)
  await at.client.submitTask({ body: makeTask(id, 2) })
  const first = connect(`?task_id=${id}&last_event_id=${hello.id}`)
  await next(first)
  const created = await next(first)
  expect(created.event.type).toBe('task.created')
  await first.return(undefined)
  await at.client.cancelTask({ params: { task_id: id } })
  // The id in the header is newer than the one in the URL.
  const second = connect(`?task_id=${id}&last_event_id=0-0`, { 'last-event-id': created.id! })
  await next(second)
  expect(words(await next(second))).toEqual(['session.state_changed', 'CANCELLED'])
  await second.return(undefined)
})

test('a reader with many lost connections gets every event once and in order', async () => {
  const id = `cut${++serial}`
  const start = connect('')
  const origin = (await next(start)).id!
  await start.return(undefined)
  const whole: string[] = []
  await fc.assert(
    fc.asyncProperty(fc.array(fc.integer({ min: 0, max: 6 }), { minLength: 1, maxLength: 6 }), async (cuts) => {
      const task = `${id}-${++serial}`
      const work = (async () => {
        await at.client.submitTask({ body: makeTask(task, 4) })
        const orders = await node.lease(4)
        await Promise.all(orders.map((order) => node.complete(order)))
      })()
      const heard: string[] = []
      let place = origin
      for (let i = 0; ; i++) {
        const events = connect(`?task_id=${task}&last_event_id=${place}`)
        let left = cuts[i] ?? Infinity
        for await (const { id: at_, event } of events) {
          place = at_ ?? place
          if (event.type !== 'hello' && event.type !== 'ping') heard.push(`${at_} ${event.type}`)
          if (event.type === 'task.completed') left = 0
          if (left-- <= 0) break
        }
        if (heard.at(-1)?.endsWith('task.completed')) break
      }
      await work
      const events = connect(`?task_id=${task}&last_event_id=${origin}`)
      whole.length = 0
      for await (const { id: at_, event } of events) {
        if (event.type !== 'hello') whole.push(`${at_} ${event.type}`)
        if (event.type === 'task.completed') break
      }
      expect(heard).toEqual(whole)
      // Four leased, four ended.
      expect(heard.filter((each) => each.endsWith('session.state_changed'))).toHaveLength(8)
    }),
    { numRuns: 15 },
  )
})

test('the client streams events, and ends when its signal is aborted', async () => {
  const gone = new AbortController()
  const events = at.client.streamEvents({ signal: gone.signal })
  expect((await events.next()).value).toMatchObject({ data: { type: 'hello' } })
  const id = `t${++serial}`
  await at.client.submitTask({ body: makeTask(id) })
  expect((await events.next()).value).toMatchObject({ data: { type: 'task.created', data: { task_id: id } } })
  gone.abort(new Error('enough'))
  await expect(events.next()).rejects.toThrow('enough')
  await expect.poll(() => at.server.waiting).toBe(0)
  await at.client.cancelTask({ params: { task_id: id } })
})

test('a closing server ends the streams and long polls at once', async () => {
  const other = await startTestServer()
  await other.client.submitTask({ body: makeTask('t') })
  const poll = other.strict.getTask({ params: { task_id: 't' }, query: { wait: 60 } })
  const worker = await TestNode.join(other.strict, 'n')
  await worker.lease(1)
  const lease = worker.lease(1, 60)
  const stream = await fetch(`${other.server.url}/events`)
  const follow = Array.fromAsync(other.strict.streamTaskResults({ params: { task_id: 't' }, query: { follow: true } }))
  await expect.poll(() => other.server.waiting).toBe(4)
  const ended = Promise.allSettled([poll, lease, stream.text(), follow])
  const before = performance.now()
  await other[Symbol.asyncDispose]()
  expect(performance.now() - before).toBeLessThan(4000)
  const [task, orders, , lines] = await ended
  expect(task).toMatchObject({ status: 'fulfilled', value: { status: 'running' } })
  expect(orders).toMatchObject({ status: 'fulfilled', value: [] })
  // A normal end would mean that all results were sent.
  expect(lines).toMatchObject({ status: 'rejected' })
})
