import type { VirtualClock } from './clock.ts'
import type { Scenario } from './scenario.ts'
import type { SimTask } from './workload.ts'

export interface TaskEnd {
  trainer: string
  submittedMs: number
  endedMs: number
  /** The first and the last of its sessions to end by themselves. */
  firstMs: number
  lastMs: number
  /** What its longest session would have taken alone on an idle machine. */
  longestMs: number
  valid: number
  failed: number
  cancelled: number
}

/** Why work was wasted. */
export type Waste = 'node died' | 'failed' | 'stopped' | 'refused'

/** Counts and times of one simulation, in the same form for every scheduler. Times in virtual milliseconds. */
export class Ledger {
  readonly #clock: VirtualClock
  readonly #plenty: number
  #at = 0
  #slots = 0
  #busy = 0
  #wanting = 0
  /** Integrals over time. `saturated`: while there was work for every RUN and READY slot. */
  readonly slotMs = { busy: 0, usable: 0, saturatedBusy: 0, saturated: 0, idle: 0, misplaced: 0 }
  /** Sessions of nodes beyond their run slots, and run slots without a session of the node that will use them. */
  #excess = 0
  #vacant = 0
  saturatedMs = 0
  /** From submit to the first lease; and from a node's death to the next lease. */
  readonly queueAgesMs: number[] = []
  readonly rescuesMs: number[] = []
  readonly #shares: { name: string; waiting: number; held: number; heldMs: number }[]
  readonly #trainers = new Map<string, { waiting: number; held: number; heldMs: number }>()
  /** By trainer: useful time in RUN. */
  readonly usefulMs = new Map<string, number>()
  readonly wastedMs: Record<Waste, number> = { 'node died': 0, failed: 0, stopped: 0, refused: 0 }
  readonly ends: TaskEnd[] = []
  sessions = 0
  refills = 0
  /** Run time saved by early stop or cancel, of waiting and running sessions. */
  sparedMs = 0
  lastMs = 0

  constructor(clock: VirtualClock, { trainers, widths }: Pick<Scenario, 'trainers' | 'widths'>) {
    this.#clock = clock
    this.#plenty = 1 + widths.ready / widths.run
    const known = trainers.map(({ name, priority }) => ({ name, priority, waiting: 0, held: 0, heldMs: 0 }))
    for (const each of known) {
      this.#trainers.set(each.name, each)
      this.usefulMs.set(each.name, 0)
    }
    const alike = [...Map.groupBy(known, ({ priority }) => priority).values()]
    this.#shares = alike.sort((a, b) => b.length - a.length)[0] ?? []
  }

  /** Leased time by trainer, among trainers of equal priority, while each had waiting sessions. */
  get shares(): number[] {
    return this.#shares.map(({ heldMs }) => heldMs)
  }

  /** Adds or removes run slots. */
  addSlots(count: number): void {
    this.#advance()
    this.#slots += count
  }

  addBusy(count: number): void {
    this.#advance()
    this.#busy += count
    if (this.#busy < 0) throw new Error('the number of used slots is negative')
  }

  /** Sessions of one node that run or wait, before and after, beside its run slots. */
  moveHeld(before: number, after: number, width: number): void {
    this.#advance()
    this.#excess += Math.max(0, after - width) - Math.max(0, before - width)
    this.#vacant += Math.max(0, width - after) - Math.max(0, width - before)
  }

  addVacant(count: number): void {
    this.#advance()
    this.#vacant += count
  }

  /** Sessions that still have to run, from submit to the end of a run that counts. */
  addWanting(count: number): void {
    this.#advance()
    this.#wanting += count
    if (this.#wanting < 0) throw new Error('the number of waiting sessions is negative')
  }

  addWaiting(trainer: string, count: number): void {
    this.#advance()
    this.#trainers.get(trainer)!.waiting += count
  }

  /** Leased sessions. */
  addHeld(trainer: string, count: number): void {
    this.#advance()
    this.#trainers.get(trainer)!.held += count
  }

  addUseful(trainer: string, ms: number): void {
    this.usefulMs.set(trainer, (this.usefulMs.get(trainer) ?? 0) + ms)
  }

  addWaste(why: Waste, ms: number): void {
    this.wastedMs[why] += ms
  }

  taskEnded(task: SimTask, end: Omit<TaskEnd, 'trainer' | 'submittedMs' | 'endedMs'>): void {
    const endedMs = this.#clock.elapsed
    this.ends.push({ trainer: task.trainer.name, submittedMs: task.submittedMs, endedMs, ...end })
    this.lastMs = endedMs
  }

  close(): void {
    this.#advance()
  }

  #advance(): void {
    const ms = this.#clock.elapsed - this.#at
    if (ms === 0) return
    this.#at = this.#clock.elapsed
    if (this.#shares.every(({ waiting }) => waiting > 0)) for (const each of this.#shares) each.heldMs += each.held * ms
    const usable = Math.min(this.#slots, this.#wanting)
    this.slotMs.busy += this.#busy * ms
    this.slotMs.usable += usable * ms
    this.slotMs.misplaced += Math.min(this.#excess, this.#vacant) * ms
    this.slotMs.idle += (this.#slots - this.#busy) * ms
    if (this.#wanting < this.#slots * this.#plenty) return
    this.saturatedMs += ms
    this.slotMs.saturatedBusy += this.#busy * ms
    this.slotMs.saturated += this.#slots * ms
  }
}
