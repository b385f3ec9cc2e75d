import { VirtualClock } from '../clock.ts'
import { runFleet } from '../fleet.ts'
import { Heap } from '../heap.ts'
import { Ledger } from '../ledger.ts'
import type { Scenario } from '../scenario.ts'
import { drawFate, type Fate, type SimTask, Workload } from '../workload.ts'

interface Session {
  task: SimTask
  fate: Fate
  state: 'waiting' | 'running' | 'over'
  stop: () => void
  begunMs: number
}

interface OpenTask {
  task: SimTask
  sessions: Session[]
  left: number
  usable: number
  valid: number
  firstMs: number
  lastMs: number
}

export interface BaselineRun {
  clock: VirtualClock
  ledger: Ledger
  workload: Workload
}

/**
 * A scheduler close to the optimum: all run slots are one pool, messages take no time, every session is prepared as soon as
 * it is submitted, the longest session runs first, nothing fails and a lost node loses no work. Ignores labels and
 * priorities.
 */
export async function runIdeal(scenario: Scenario): Promise<BaselineRun> {
  const clock = new VirtualClock()
  const ledger = new Ledger(clock, scenario)
  const open = new Map<string, OpenTask>()
  const ready = new Heap<Session>((a, b) => a.fate.runMs > b.fate.runMs)
  let free = 0

  const start = (): void => {
    for (
      let session = free > 0 ? ready.pop() : undefined;
      session !== undefined;
      session = free > 0 ? ready.pop() : undefined
    ) {
      if (session.state === 'waiting') run(session)
    }
  }
  const run = (session: Session): void => {
    free -= 1
    session.state = 'running'
    session.begunMs = clock.elapsed
    ledger.addBusy(1)
    ledger.queueAgesMs.push(Math.max(0, clock.elapsed - session.task.submittedMs - session.fate.initMs))
    ledger.addWaiting(session.task.trainer.name, -1)
    ledger.addHeld(session.task.trainer.name, 1)
    session.stop = clock.after(session.fate.runMs, () => {
      leaveRun(session)
      ledger.addUseful(session.task.trainer.name, session.fate.runMs)
      session.stop = clock.after(session.fate.postrunMs, () => end(session))
      start()
    })
  }
  const leaveRun = (session: Session): void => {
    free += 1
    ledger.addBusy(-1)
    ledger.addHeld(session.task.trainer.name, -1)
    ledger.addWanting(-1)
    session.state = 'over'
  }
  const end = (session: Session): void => {
    const known = open.get(session.task.id)
    if (known === undefined) return
    known.left -= 1
    known.valid += 1
    if (session.fate.isUsable) known.usable += 1
    known.firstMs ||= clock.elapsed
    known.lastMs = clock.elapsed
    workload.sessionEnded(session.task)
    const isEnough = known.usable >= (session.task.trainer.earlyStop ?? Infinity)
    if (known.left === 0 || isEnough) endTask(known)
  }
  const endTask = (known: OpenTask): void => {
    const { task, sessions, valid, firstMs, lastMs, left } = known
    open.delete(task.id)
    for (const session of sessions) {
      session.stop()
      if (session.state === 'running') {
        ledger.sparedMs += session.fate.runMs - (clock.elapsed - session.begunMs)
        leaveRun(session)
      } else if (session.state === 'waiting') {
        session.state = 'over'
        ledger.sparedMs += session.fate.runMs
        ledger.addWanting(-1)
        ledger.addWaiting(task.trainer.name, -1)
      }
    }
    const longestMs = Math.max(...sessions.map(({ fate }) => fate.initMs + fate.runMs + fate.postrunMs))
    ledger.taskEnded(task, { firstMs, lastMs, longestMs, valid, failed: 0, cancelled: left })
    workload.taskEnded(task.id)
    start()
  }

  const workload = new Workload(clock, scenario, {
    submit(tasks) {
      for (const task of tasks) {
        const sessions = Array.from({ length: task.samples }, (_, sample): Session => {
          const { failure: _none, ...fate } = drawFate(scenario, task.id, sample, 1)
          const session: Session = { task, fate, state: 'waiting', stop: () => {}, begunMs: 0 }
          session.stop = clock.after(fate.initMs, () => {
            ready.push(session)
            start()
          })
          return session
        })
        open.set(task.id, { task, sessions, left: task.samples, usable: 0, valid: 0, firstMs: 0, lastMs: 0 })
        ledger.sessions += task.samples
        ledger.addWanting(task.samples)
        ledger.addWaiting(task.trainer.name, task.samples)
      }
    },
    advancePolicy: () => {},
  })
  const { run: width } = scenario.widths
  runFleet(scenario, clock, {
    join() {
      free += width
      ledger.addSlots(width)
      start()
    },
    lose() {
      free -= width
      ledger.addSlots(-width)
    },
  })
  workload.start()
  await clock.run(() => workload.isOver)
  ledger.close()
  return { clock, ledger, workload }
}
