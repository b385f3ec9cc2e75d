import { VirtualClock } from '../clock.ts'
import { type FleetNode, runFleet } from '../fleet.ts'
import { Ledger } from '../ledger.ts'
import { createRandom } from '../random.ts'
import type { Scenario } from '../scenario.ts'
import { drawFate, type SimTask, Workload } from '../workload.ts'
import type { BaselineRun } from './ideal.ts'
import { type PushedEnd, type PushedSession, PushNode } from './nvidia-node.ts'

/** State of a node as the server knows it. */
interface Seen {
  fleet: FleetNode
  node: PushNode
  metrics: ReturnType<PushNode['metrics']>
  reservations: number
  heartbeatMs: number
}

interface OpenTask {
  task: SimTask
  sessions: PushedSession[]
  left: number
  usable: number
  valid: number
  failed: number
  firstMs: number
  lastMs: number
}

const HEARTBEAT_MS = 30_000
const HEALTHY_MS = 2.5 * HEARTBEAT_MS
const RETRY_MS = 1000
const GRACE_MS = 120_000

/**
 * The policy of NVIDIA's Polar by its documented behaviour: the server pushes sessions, chooses a node by its last heartbeat
 * and the sessions sent since, keeps everything in memory, and moves and repeats nothing. Where it would wait for ever (a
 * node lost before the session was reported as started), or retry a dead node at once, the simulation sets a limit.
 */
export async function runNvidia(scenario: Scenario): Promise<BaselineRun> {
  const { widths, roundTripMs, agentTimeoutMs, seed, outage } = scenario
  const clock = new VirtualClock()
  const ledger = new Ledger(clock, scenario)
  const random = createRandom(seed, 'nvidia')
  const seen = new Map<string, Seen>()
  const open = new Map<string, OpenTask>()
  const places = new Map<PushedSession, Seen>()
  let waiting: PushedSession[] = []
  let isUp = true
  const capacity = widths.init + 2 * widths.run + widths.postrun

  const pick = (): Seen | undefined => {
    let best: Seen | undefined
    for (const each of seen.values()) {
      const { metrics: m } = each
      if (clock.elapsed - each.heartbeatMs > HEALTHY_MS) continue
      if (m.init + m.ready + m.run + m.postrun + each.reservations >= capacity || m.postrun >= 2 * widths.postrun)
        continue
      if (best === undefined || compare(each, best) < 0) best = each
    }
    return best
  }
  const compare = (a: Seen, b: Seen): number => {
    const [x, y] = [a.metrics, b.metrics]
    return (
      x.run - y.run ||
      x.postrun - y.postrun ||
      x.init + a.reservations - (y.init + b.reservations) ||
      x.ready - y.ready ||
      (a.fleet.id < b.fleet.id ? -1 : 1)
    )
  }
  const dispatch = (session: PushedSession): boolean => {
    const place = pick()
    if (place === undefined) return false
    place.reservations += 1
    setWaiting(session, false)
    clock.after(roundTripMs / 2, () => {
      if (session.isOver) return
      if (place.node.isDead) {
        place.reservations -= 1
        setWaiting(session, true)
        clock.after(RETRY_MS, () => {
          if (!session.isOver) waiting.push(session)
        })
        return
      }
      ledger.queueAgesMs.push(clock.elapsed - session.task.submittedMs)
      places.set(session, place)
      ledger.addHeld(session.task.trainer.name, 1)
      place.node.take(session)
    })
    return true
  }
  const look = (): void => {
    let done = 0
    for (const session of isUp ? waiting : []) {
      if (!session.isOver && !dispatch(session)) break
      done += 1
    }
    waiting.splice(0, done)
    clock.after(RETRY_MS, look)
  }
  const finish = (session: PushedSession, end: PushedEnd): void => {
    release(session)
    const known = open.get(session.task.id)
    if (session.isOver || known === undefined || !isUp) return ledger.addWaste('refused', end.runMs)
    if (end.kind === 'done') ledger.addUseful(session.task.trainer.name, end.runMs)
    else ledger.addWaste('failed', end.runMs)
    settle(session, known, end.kind === 'done')
  }
  const settle = (session: PushedSession, known: OpenTask, isValid: boolean): void => {
    session.isOver = true
    unwant(session)
    known.left -= 1
    if (isValid) known.valid += 1
    else known.failed += 1
    if (isValid && session.fate.isUsable) known.usable += 1
    known.firstMs ||= clock.elapsed
    known.lastMs = clock.elapsed
    workload.sessionEnded(session.task)
    if (known.left === 0 || known.usable >= (session.task.trainer.earlyStop ?? Infinity)) endTask(known)
  }
  const endTask = (known: OpenTask): void => {
    const { task, sessions, valid, failed, firstMs, lastMs, left } = known
    open.delete(task.id)
    for (const session of sessions) {
      if (session.isOver) continue
      ledger.sparedMs += session.wants ? session.fate.runMs : 0
      forget(session)
    }
    const longestMs = Math.max(...sessions.map(({ fate }) => fate.initMs + fate.runMs + fate.postrunMs))
    ledger.taskEnded(task, { firstMs, lastMs, longestMs, valid, failed, cancelled: left })
    workload.taskEnded(task.id)
  }
  const forget = (session: PushedSession): void => {
    session.isOver = true
    unwant(session)
    const place = places.get(session)
    release(session)
    setWaiting(session, false)
    if (place !== undefined) clock.after(roundTripMs / 2, () => place.node.cancel(session))
  }
  const release = (session: PushedSession): void => {
    if (places.delete(session)) ledger.addHeld(session.task.trainer.name, -1)
  }
  const setWaiting = (session: PushedSession, isWaiting: boolean): void => {
    if (session.isWaiting !== isWaiting) ledger.addWaiting(session.task.trainer.name, isWaiting ? 1 : -1)
    session.isWaiting = isWaiting
  }
  const unwant = (session: PushedSession): void => {
    if (session.wants) ledger.addWanting(-1)
    session.wants = false
  }
  const submit = (tasks: readonly SimTask[]): void => {
    for (const task of tasks) {
      const sessions = Array.from({ length: task.samples }, (_, sample): PushedSession => {
        return {
          task,
          sample,
          fate: drawFate(scenario, task.id, sample, 1),
          isOver: false,
          wants: true,
          isWaiting: false,
        }
      })
      open.set(task.id, { task, sessions, left: task.samples, usable: 0, valid: 0, failed: 0, firstMs: 0, lastMs: 0 })
      ledger.sessions += task.samples
      ledger.addWanting(task.samples)
      for (const session of sessions) setWaiting(session, true)
      for (const session of sessions) if (waiting.length > 0 || !isUp || !dispatch(session)) waiting.push(session)
    }
  }

  const workload = new Workload(clock, scenario, { submit, advancePolicy: () => {} })
  runFleet(scenario, clock, {
    join(fleet) {
      const node = new PushNode({ widths, clock, ledger, timeoutMs: agentTimeoutMs + 60_000 }, (session, end) => {
        clock.after(roundTripMs / 2, () => finish(session, end))
      })
      const entry: Seen = { fleet, node, metrics: node.metrics(), reservations: 0, heartbeatMs: clock.elapsed }
      seen.set(fleet.id, entry)
      ledger.addSlots(widths.run)
      const beat = (): void => {
        if (node.isDead) return
        entry.metrics = node.metrics()
        entry.reservations = 0
        entry.heartbeatMs = clock.elapsed
        clock.after(HEARTBEAT_MS, beat)
      }
      clock.after(random() * HEARTBEAT_MS, beat)
    },
    lose({ id }) {
      const lost = seen.get(id)?.node.kill() ?? []
      ledger.addSlots(-widths.run)
      for (const session of lost) {
        clock.after(agentTimeoutMs + GRACE_MS, () => {
          const known = open.get(session.task.id)
          release(session)
          if (!session.isOver && known !== undefined) settle(session, known, false)
        })
      }
    },
  })
  if (outage !== undefined) {
    clock.after(outage.atMs, () => (isUp = false))
    clock.after(outage.atMs + outage.forMs, () => {
      isUp = true
      const tasks = [...open.values()]
      open.clear()
      waiting = []
      // The server has lost its state; the trainers submit the missing sessions again. Nodes continue with their sessions.
      for (const { sessions } of tasks) {
        for (const session of sessions) {
          if (session.isOver) continue
          session.isOver = true
          unwant(session)
          setWaiting(session, false)
        }
      }
      submit(tasks.map(({ task }) => task))
    })
  }
  clock.after(RETRY_MS, look)
  workload.start()
  await clock.run(() => workload.isOver)
  ledger.close()
  return { clock, ledger, workload }
}
