import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { startTestServer, TestNode, type TestServer } from '../../../test/support/rollout-server.ts'

let at: TestServer
beforeEach(async () => {
  at = await startTestServer()
})
afterEach(async () => {
  await at?.[Symbol.asyncDispose]()
  expect(at.problems).toEqual([])
})

/** Confirms a state as the gateway of the node would, and returns the state that the server then has. */
function confirm(node: TestNode, applied: { change: number; version: number | null }, inFlight = 0, wait = 0) {
  const { change, version } = applied
  const body = { boot_id: 'boot', change, version, in_flight: inFlight, wait }
  return at.strict.pollPolicy({ params: node.params, body })
}

/** Whether a promise is still pending after the server has handled other requests. */
async function isPending(promise: Promise<unknown>): Promise<boolean> {
  let isOver = false
  const end = () => void (isOver = true)
  promise.then(end, end)
  await at.strict.getPolicy()
  return !isOver
}

describe('policy routes', () => {
  test('a drain pause waits until every node is paused and has no call in flight; a node that joins is paused', async () => {
    const [one, two] = [await TestNode.join(at.client, 'one'), await TestNode.join(at.client, 'two')]
    await confirm(one, { change: 0, version: null }, 2)
    const polled = confirm(two, { change: 0, version: null }, 0, 30)
    const paused = at.strict.pausePolicy({ body: {} })
    const state = await polled
    expect(state).toEqual({ change: 1, version: null, paused: true, mode: 'drain' })
    await confirm(two, state)
    await confirm(one, state, 1)
    expect(await isPending(paused)).toBe(true)
    expect((await at.strict.getPolicy()).nodes).toEqual([
      { node_id: 'one', change: 1, version: null, in_flight: 1, confirmed: false, lost: false },
      { node_id: 'two', change: 1, version: null, in_flight: 0, confirmed: true, lost: false },
    ])
    const three = await TestNode.join(at.client, 'three')
    expect(await three.join([], 'boot')).toMatchObject({ policy: state })
    await confirm(three, state)
    await confirm(one, state, 0)
    expect(await paused).toMatchObject({ change: 1, paused: true })
    // Repeated, it waits for nothing and changes nothing.
    expect(await at.strict.pausePolicy({ body: { timeout_seconds: 0 } })).toMatchObject({ change: 1 })
  })

  test('a hold pause does not wait for calls in flight', async () => {
    const node = await TestNode.join(at.client, 'one')
    const paused = at.strict.pausePolicy({ body: { mode: 'hold' } })
    const state = await confirm(node, { change: 0, version: null }, 3, 30)
    await confirm(node, state, 3)
    expect(await paused).toMatchObject({ paused: true, mode: 'hold', nodes: [{ in_flight: 3, confirmed: true }] })
  })

  test('when the time is over the answer is 504 and names the nodes; the pause stays', async () => {
    const node = await TestNode.join(at.client, 'slow')
    await confirm(node, { change: 1, version: null }, 4)
    const late = at.strict.pausePolicy({ body: { timeout_seconds: 0.1 } })
    await expect(late).rejects.toMatchObject({
      failure: {
        code: 'server.unconfirmed',
        status: 504,
        message: expect.stringContaining('slow (4 calls in flight)'),
      },
    })
    expect(await at.strict.getPolicy()).toMatchObject({ paused: true })
  })

  test('a version is set together with the end of a pause', async () => {
    const node = await TestNode.join(at.client, 'one')
    const paused = at.strict.pausePolicy({ body: {} })
    await confirm(node, await confirm(node, { change: 0, version: null }, 0, 30))
    await paused
    const put = at.strict.putPolicy({ body: { version: 8, resume: true } })
    const state = await confirm(node, { change: 1, version: null }, 0, 30)
    expect(state).toEqual({ change: 2, version: 8, paused: false, mode: 'drain' })
    await confirm(node, state, 5)
    const set = await put
    expect(set).toMatchObject({ version: 8, nodes: [{ version: 8, confirmed: true }] })
    expect(set.warnings).toBeUndefined()
    expect(await at.strict.resumePolicy({ query: {} })).toMatchObject({ change: 2, paused: false })
  })

  test('a version that is set without a pause while calls are in flight is answered with a warning', async () => {
    const node = await TestNode.join(at.client, 'one')
    const put = at.strict.putPolicy({ body: { version: 1 } })
    await confirm(node, await confirm(node, { change: 0, version: null }, 2, 30), 2)
    expect((await put).warnings).toEqual([expect.stringContaining('were not paused, and 2 calls were in flight')])
    expect((await at.strict.putPolicy({ body: { version: 1 } })).warnings).toBeUndefined()
  })

  test('a pause that another request ends meanwhile is answered with 409', async () => {
    const node = await TestNode.join(at.client, 'one')
    const paused = at.strict.pausePolicy({ body: {} })
    paused.catch(() => {})
    await confirm(node, { change: 0, version: null }, 1, 30)
    const resumed = at.strict.resumePolicy({ query: {} })
    await confirm(node, await confirm(node, { change: 1, version: null }, 1, 30), 1)
    expect(await resumed).toMatchObject({ paused: false })
    await expect(paused).rejects.toMatchObject({ failure: { code: 'request.conflict', status: 409 } })
  })

  test('a node that dies is waited for until its lease is over', async () => {
    await using short = await startTestServer({ leaseMs: 500 })
    await TestNode.join(short.client, 'dead')
    expect(await short.strict.pausePolicy({ body: {} })).toMatchObject({
      paused: true,
      nodes: [{ node_id: 'dead', confirmed: false, lost: true }],
    })
  })

  test('a node that left is not waited for, and an unknown or replaced process cannot confirm', async () => {
    const node = await TestNode.join(at.client, 'one')
    const paused = at.strict.pausePolicy({ body: {} })
    expect(await isPending(paused)).toBe(true)
    await at.client.leaveNode({ params: node.params, query: { boot_id: 'boot' } })
    expect(await paused).toMatchObject({ nodes: [] })
    const applied = { change: 1, version: null }
    await expect(confirm(node, applied)).rejects.toMatchObject({ failure: { status: 404 } })
    await node.join([], 'other')
    await expect(confirm(node, applied)).rejects.toMatchObject({ failure: { code: 'request.stale', status: 409 } })
  })
})
