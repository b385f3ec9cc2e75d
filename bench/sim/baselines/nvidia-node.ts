import type { StageWidths } from '../../../src/node/session/stages.ts'
import type { VirtualClock } from '../clock.ts'
import type { Ledger } from '../ledger.ts'
import type { Fate, SimTask } from '../workload.ts'

export interface PushedSession {
  task: SimTask
  sample: number
  fate: Fate
  /** Ended for the server; further work of the node on it is wasted. */
  isOver: boolean
  wants: boolean
  isWaiting: boolean
}

interface Here {
  session: PushedSession
  takenMs: number
  runBegunMs: number
  stop: () => void
  stage: 'init' | 'run' | 'postrun'
}

export type PushedEnd = { kind: 'done' | 'failed' | 'timeout'; runMs: number }

/**
 * A gateway node as the reference describes it: workers for INIT, which keep their sandbox and their slot until a run slot is
 * free, for RUN and for POSTRUN, each with a queue in order of arrival. One clock for preparing, waiting and running.
 */
export class PushNode {
  readonly #widths: StageWidths
  readonly #clock: VirtualClock
  readonly #ledger: Ledger
  readonly #timeoutMs: number
  readonly #ended: (session: PushedSession, end: PushedEnd) => void
  readonly #initQueue: PushedSession[] = []
  readonly #postrunQueue: Here[] = []
  readonly #blocked: Here[] = []
  readonly #here = new Set<Here>()
  #init = 0
  #run = 0
  #postrun = 0
  isDead = false

  constructor(
    deps: { widths: StageWidths; clock: VirtualClock; ledger: Ledger; timeoutMs: number },
    ended: (session: PushedSession, end: PushedEnd) => void,
  ) {
    this.#widths = deps.widths
    this.#clock = deps.clock
    this.#ledger = deps.ledger
    this.#timeoutMs = deps.timeoutMs
    this.#ended = ended
  }

  metrics() {
    return {
      init: this.#initQueue.length + this.#init - this.#blocked.length,
      ready: this.#blocked.length,
      run: this.#run,
      postrun: this.#postrunQueue.length + this.#postrun,
    }
  }

  take(session: PushedSession): void {
    this.#initQueue.push(session)
    this.#fillInit()
  }

  /** Stops a session that the server has cancelled. */
  cancel(session: PushedSession): void {
    if (this.isDead) return
    const queued = this.#initQueue.indexOf(session)
    if (queued !== -1) this.#initQueue.splice(queued, 1)
    for (const here of this.#here) if (here.session === session) this.#leave(here)
  }

  /** All sessions of the node. */
  kill(): PushedSession[] {
    this.isDead = true
    const lost = [...this.#initQueue]
    for (const here of this.#here) {
      here.stop()
      if (here.stage === 'run') this.#ledger.addBusy(-1)
      this.#ledger.addWaste('node died', this.#clock.elapsed - here.takenMs)
      lost.push(here.session)
    }
    return lost
  }

  #fillInit(): void {
    while (this.#init < this.#widths.init) {
      const session = this.#initQueue.shift()
      if (session === undefined) return
      const here: Here = { session, takenMs: this.#clock.elapsed, runBegunMs: 0, stop: () => {}, stage: 'init' }
      this.#here.add(here)
      this.#init += 1
      const { fate } = session
      const isSpoilt = fate.failure?.stage === 'init'
      here.stop = this.#clock.after(isSpoilt ? fate.initMs * fate.failure!.after : fate.initMs, () => {
        if (isSpoilt) return this.#end(here, 'failed')
        if (this.#run < this.#widths.run) this.#beginRun(here)
        else this.#blocked.push(here)
      })
    }
  }

  #beginRun(here: Here): void {
    this.#init -= 1
    this.#run += 1
    here.stage = 'run'
    here.runBegunMs = this.#clock.elapsed
    this.#ledger.addBusy(1)
    const { fate } = here.session
    const isSpoilt = fate.failure?.stage === 'run'
    const leftMs = this.#timeoutMs - (this.#clock.elapsed - here.takenMs)
    const wantedMs = isSpoilt ? fate.runMs * fate.failure!.after : fate.runMs
    here.stop = this.#clock.after(Math.max(0, Math.min(wantedMs, leftMs)), () => {
      const end = isSpoilt ? 'failed' : wantedMs > leftMs ? 'timeout' : undefined
      this.#leaveRun()
      if (end !== undefined) {
        here.stage = 'postrun'
        this.#postrun += 1
        this.#end(here, end)
      } else {
        here.stage = 'postrun'
        this.#postrunQueue.push(here)
        this.#fillPostrun()
      }
    })
    this.#fillInit()
  }

  #leaveRun(): void {
    this.#run -= 1
    this.#ledger.addBusy(-1)
    const next = this.#blocked.shift()
    if (next !== undefined) this.#beginRun(next)
  }

  #fillPostrun(): void {
    while (this.#postrun < this.#widths.postrun) {
      const here = this.#postrunQueue.shift()
      if (here === undefined) return
      this.#postrun += 1
      here.stop = this.#clock.after(here.session.fate.postrunMs, () => this.#end(here, 'done'))
    }
  }

  #end(here: Here, kind: PushedEnd['kind']): void {
    const runMs = here.runBegunMs === 0 ? 0 : Math.min(this.#clock.elapsed - here.runBegunMs, here.session.fate.runMs)
    this.#here.delete(here)
    if (here.stage === 'init') this.#init -= 1
    else this.#postrun -= 1
    this.#fillInit()
    this.#fillPostrun()
    this.#ended(here.session, { kind, runMs })
  }

  #leave(here: Here): void {
    here.stop()
    this.#here.delete(here)
    if (here.stage === 'init') {
      const blocked = this.#blocked.indexOf(here)
      if (blocked !== -1) this.#blocked.splice(blocked, 1)
      this.#init -= 1
      this.#fillInit()
    } else if (here.stage === 'run') this.#leaveRun()
    else {
      const queued = this.#postrunQueue.indexOf(here)
      if (queued !== -1) this.#postrunQueue.splice(queued, 1)
      else this.#postrun -= 1
      this.#fillPostrun()
    }
  }
}
