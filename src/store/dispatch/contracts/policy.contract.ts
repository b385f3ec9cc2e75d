import { beforeEach, describe, expect, test } from 'vitest'
import { DispatchDriver, makeOutcome, makeRegistration, makeTask } from '../../../../test/support/dispatch-driver.ts'
import type { Database } from '../../database.ts'

/** The policy state, and what nodes confirm. */
export function describePolicy(open: () => Database): void {
  let database: Database
  let driver: DispatchDriver
  beforeEach(async () => {
    database = open()
    driver = new DispatchDriver(database)
    await driver.clear()
  })
  const join = (bootId: string, replaces?: string) =>
    driver.dispatch.join({ registration: makeRegistration('n9'), labels: [], bootId, replaces, holding: [] })
  const applied = { bootId: 'b1', change: 3, version: 8, inFlight: 2 }

  const submit = (id: string, samples: number) =>
    driver.dispatch.enqueue([{ task: makeTask(id, samples), stalenessLimit: 1 }])
  const withTokens = (oldestVersion?: number) => ({
    counts: {
      ...makeOutcome({ sessionId: '', attempt: 1 }).counts!,
      ...(oldestVersion !== undefined && { oldestVersion }),
    },
  })

  describe('policy', () => {
    test('a running session with a token beyond the staleness limit is cancelled; others of its task continue', async () => {
      const { dispatch } = driver
      await dispatch.changePolicy({ version: 3 })
      await submit('t', 4)
      const [old, fresh, silent] = await driver.take(3)
      const report = (oldestVersion: number) => ({ progress: { calls: 1, tokens: 5, oldestVersion } })
      await driver.renew('n1', [{ ...old!, ...report(3) }, { ...fresh!, ...report(4) }, silent!])
      await dispatch.changePolicy({ version: 4 })
      // A renewal without progress keeps the version.
      expect(await driver.renew('n1', [old!, fresh!])).toMatchObject([{ kind: 'held' }, { kind: 'held' }])
      await dispatch.changePolicy({ version: 5 })
      const kinds = (await driver.renew('n1', [old!, fresh!, silent!])).map(({ kind }) => kind)
      expect(kinds).toEqual(['cancelled', 'held', 'held'])
      expect(await dispatch.sessions.find(old!.sessionId)).toMatchObject({
        failure: { code: 'session.cancelled', message: expect.stringContaining('policy version 3, which is too old') },
      })
      // Sessions that have sampled nothing are never stale, however old their task is.
      expect(await driver.take(1)).toHaveLength(1)
    })

    test('a result with a token beyond the staleness limit is refused, and its session cancelled', async () => {
      const { dispatch } = driver
      await submit('t', 3)
      const [old, fresh, unknown] = await driver.take(3)
      await dispatch.changePolicy({ version: 5 })
      expect(await driver.end(old!, undefined, withTokens(3))).toEqual({ kind: 'refused', reason: 'cancelled' })
      expect(await driver.end(fresh!, undefined, withTokens(4))).toMatchObject({ kind: 'accepted' })
      expect(await driver.end(unknown!, undefined, withTokens())).toMatchObject({ kind: 'accepted' })
      // A repetition of an accepted result stays accepted.
      await dispatch.changePolicy({ version: 9 })
      expect(await driver.end(fresh!, undefined, withTokens(4))).toEqual({ kind: 'duplicate' })
      expect(await dispatch.tasks.find('t')).toMatchObject({ status: 'completed', valid: 2, cancelled: 1 })
    })

    test('a late result with old tokens does not cancel the attempt of another node', async () => {
      await submit('t', 1)
      const [lost] = await driver.take(1)
      await driver.renew('n1', [{ ...lost!, progress: { calls: 1, tokens: 5, oldestVersion: 0 } }])
      expect(await driver.pass(12_000)).toBe(1)
      const [again] = await driver.take(1, 'n2')
      await driver.dispatch.changePolicy({ version: 5 })
      expect(await driver.end(lost!, undefined, withTokens(0))).toEqual({ kind: 'refused', reason: 'stale' })
      expect(await driver.renew('n2', [again!])).toEqual([{ ...again, kind: 'held' }])
    })

    test('a version, a pause and its mode each make one change; a repetition makes none', async () => {
      const { dispatch } = driver
      const unset = { change: 0, version: null, paused: false, mode: 'drain' }
      expect(await dispatch.policy.get()).toEqual(unset)
      expect(await dispatch.changePolicy({ paused: false })).toEqual(unset)
      const paused = { change: 1, version: null, paused: true, mode: 'hold' }
      expect(await dispatch.changePolicy({ paused: true, mode: 'hold' })).toEqual(paused)
      expect(await dispatch.changePolicy({ paused: true, mode: 'hold' })).toEqual(paused)
      expect(await dispatch.changePolicy({ paused: true, mode: 'drain' })).toMatchObject({ change: 2, mode: 'drain' })
      expect(await dispatch.changePolicy({ version: 0 })).toMatchObject({ change: 3, version: 0, paused: true })
      expect(await dispatch.changePolicy({ version: 0 })).toMatchObject({ change: 3 })
      expect(await dispatch.changePolicy({ version: 7, paused: false })).toEqual({ ...unset, change: 4, version: 7 })
      expect(await dispatch.changePolicy({ version: 6 })).toMatchObject({ change: 4, version: 7 })
    })

    test('concurrent changes of several servers are all kept', async () => {
      const other = new DispatchDriver(database)
      const change = (of: DispatchDriver, version: number) => of.dispatch.changePolicy({ version })
      await Promise.all([3, 1, 4, 1, 5].map((version, i) => change(i % 2 === 0 ? driver : other, version)))
      await Promise.all([driver.dispatch.changePolicy({ paused: true }), change(other, 9)])
      expect(await driver.dispatch.policy.get()).toMatchObject({ version: 9, paused: true })
    })

    test('a change notifies nodes, and a changed confirmation notifies trainers', async () => {
      await join('b1')
      const notices: string[] = []
      const stop = await driver.dispatch.onPolicy((notice) => notices.push(notice))
      await driver.dispatch.changePolicy({ paused: true })
      await expect.poll(() => notices).toEqual(['state'])
      await driver.dispatch.confirmPolicy('n9', applied)
      await expect.poll(() => notices).toEqual(['state', 'nodes'])
      await driver.dispatch.confirmPolicy('n9', applied)
      await driver.dispatch.changePolicy({ paused: true })
      await driver.dispatch.changePolicy({ version: 1 })
      await expect.poll(() => notices).toEqual(['state', 'nodes', 'state'])
      await stop()
    })

    test('a confirmation is stored for the process that joined, until the next process joins', async () => {
      const { dispatch } = driver
      expect(await dispatch.confirmPolicy('n9', applied)).toBe('unknown')
      await join('b1')
      // The driver's other nodes have only registered.
      expect(await dispatch.policy.listNodes()).toEqual([{ nodeId: 'n9', inFlight: 0, leased: 0, seenAt: driver.wall }])
      expect(await dispatch.confirmPolicy('n9', applied)).toBe('member')
      const stored = { nodeId: 'n9', change: 3, version: 8, inFlight: 2, leased: 0, seenAt: driver.wall }
      expect(await dispatch.policy.listNodes()).toEqual([stored])
      expect(await dispatch.confirmPolicy('n9', { ...applied, bootId: 'b2', change: 4 })).toBe('replaced')
      expect(await dispatch.policy.listNodes()).toEqual([stored])
      await dispatch.drainNode('n9')
      expect(await dispatch.confirmPolicy('n9', { ...applied, inFlight: 0 })).toBe('draining')
      expect(await dispatch.policy.listNodes()).toEqual([{ ...stored, inFlight: 0 }])
      await join('b2', 'b1')
      expect(await dispatch.policy.listNodes()).toEqual([{ nodeId: 'n9', inFlight: 0, leased: 0, seenAt: driver.wall }])
    })

    test('a node is silent when it has not renewed for a lease, and its leases are then lost', async () => {
      const { dispatch } = driver
      await join('b1')
      await driver.submit('t', 1)
      await dispatch.lease('n9', { freeSlots: 1, bootId: 'b1' })
      const renew = () => {
        driver.wall += 1
        return dispatch.renew('n9', [], { bootId: 'b1' })
      }
      await driver.pass(8000)
      await renew()
      await driver.pass(8000)
      expect(dispatch.isSilent('n9')).toBe(false)
      await driver.pass(4000)
      expect(dispatch.isSilent('n9')).toBe(true)
      const [before] = await dispatch.policy.listNodes()
      expect(before).toMatchObject({ leased: 0 })
      await renew()
      // A node that renewed, or joined again, since this server last looked is not silent.
      const [after] = await dispatch.policy.listNodes()
      expect(dispatch.isSilent('n9', before!.seenAt)).toBe(true)
      expect(dispatch.isSilent('n9', after!.seenAt)).toBe(false)
      await driver.pass(1000)
      expect(dispatch.isSilent('n9')).toBe(false)
    })

    test('a server that was stopped gives every node the time of a lease', async () => {
      await join('b1')
      driver.elapsed += 1_000_000
      await driver.pass(1000)
      expect(driver.dispatch.isSilent('n9')).toBe(false)
    })
  })
}
