import { createRandom, drawMs, normal } from './random.ts'
import type { Scenario, TrainerSpec } from './scenario.ts'
import type { VirtualClock } from './clock.ts'

export interface SimTask {
  id: string
  trainer: TrainerSpec
  samples: number
  policyVersion?: number
  /** Number of a synchronous trainer's batch; 0 for other trainers. */
  batch: number
  submittedMs: number
}

/** Outcome of one attempt of one sample, the same for every scheduler. */
export interface Fate {
  initMs: number
  runMs: number
  postrunMs: number
  /** Stage and share of the stage after which the infrastructure fails. */
  failure?: { stage: 'init' | 'run'; after: number }
  isUsable: boolean
  reward: number
}

export function drawFate(scenario: Scenario, taskId: string, sample: number, attempt: number): Fate {
  const random = createRandom(scenario.seed, `${taskId}/${sample}/${attempt}`)
  const ofTask = normal(createRandom(scenario.seed, taskId))
  const { taskShare } = scenario
  const z = Math.sqrt(taskShare) * ofTask + Math.sqrt(1 - taskShare) * normal(random)
  const fate: Fate = {
    initMs: drawMs(scenario.initMs, random),
    runMs: Math.min(drawMs(scenario.runMs, random, z), scenario.agentTimeoutMs),
    postrunMs: drawMs(scenario.postrunMs, random),
    isUsable: random() < scenario.usableRate,
    reward: random() < 0.4 ? 1 : 0,
  }
  if (random() < scenario.failureRate) fate.failure = { stage: random() < 0.5 ? 'init' : 'run', after: random() }
  return fate
}

/** A scheduler under test; the same trainers drive all schedulers. */
export interface Party {
  submit(tasks: readonly SimTask[]): void
  advancePolicy(version: number): void
}

interface Running {
  spec: TrainerSpec
  submitted: number
  /** Tasks of the batch that have not ended. */
  open: number
  batch: number
  batchBegunMs: number
  /** For a step of an asynchronous trainer. */
  endedSinceStep: number
}

export interface Batch {
  trainer: string
  sessions: number
  begunMs: number
  endedMs: number
  /** End of each session. */
  endsMs: number[]
}

/** Trainers that submit, wait and submit again, until all their sessions have been submitted and have ended. */
export class Workload {
  readonly #clock: VirtualClock
  readonly #party: Party
  readonly #trainers: Running[]
  readonly #open = new Map<string, { task: SimTask; running: Running }>()
  readonly #ends = new Map<string, number[]>()
  readonly batches: Batch[] = []
  #version = 0
  #waiting: number

  constructor(clock: VirtualClock, { trainers }: Scenario, party: Party) {
    this.#clock = clock
    this.#party = party
    this.#waiting = trainers.length
    this.#trainers = trainers.map((spec) => {
      return { spec, submitted: 0, open: 0, batch: 0, batchBegunMs: 0, endedSinceStep: 0 }
    })
  }

  get isOver(): boolean {
    return this.#waiting === 0 && this.#open.size === 0
  }

  get open(): ReadonlyMap<string, { task: SimTask }> {
    return this.#open
  }

  start(): void {
    for (const running of this.#trainers) this.#clock.after(running.spec.startMs, () => this.#begin(running))
  }

  sessionEnded(task: SimTask): void {
    if (task.trainer.kind !== 'sync') return
    const key = `${task.trainer.name}/${task.batch}`
    const ends = this.#ends.get(key) ?? []
    if (ends.length === 0) this.#ends.set(key, ends)
    ends.push(this.#clock.elapsed)
  }

  /** Called once for each task. */
  taskEnded(taskId: string): void {
    const entry = this.#open.get(taskId)
    if (entry === undefined) throw new Error(`task ${taskId} ended twice, or was never submitted`)
    this.#open.delete(taskId)
    const { running } = entry
    running.open -= 1
    if (running.spec.kind === 'async') this.#refill(running)
    else if (running.open === 0) this.#endBatch(running)
  }

  #begin(running: Running): void {
    running.batch += 1
    running.batchBegunMs = this.#clock.elapsed
    this.#submit(running, running.spec.groups)
  }

  #endBatch(running: Running): void {
    const { spec, batch, batchBegunMs: begunMs } = running
    const key = `${spec.name}/${batch}`
    const endsMs = this.#ends.get(key) ?? []
    this.#ends.delete(key)
    const sessions = spec.groups * spec.samples
    this.batches.push({ trainer: spec.name, sessions, begunMs, endedMs: this.#clock.elapsed, endsMs })
    if (running.submitted < spec.sessions) this.#clock.after(spec.trainMs, () => this.#begin(running))
  }

  /** One step for every tenth of the running groups, so that running sessions have about ten versions. */
  #refill(running: Running): void {
    running.endedSinceStep += 1
    if (running.spec.stalenessLimit !== undefined && running.endedSinceStep >= running.spec.groups / 10) {
      running.endedSinceStep = 0
      this.#version += 1
      this.#party.advancePolicy(this.#version)
    }
    if (running.submitted < running.spec.sessions) this.#submit(running, 1)
  }

  #submit(running: Running, groups: number): void {
    const { spec } = running
    const tasks: SimTask[] = []
    for (let i = 0; i < groups && running.submitted < spec.sessions; i += 1) {
      const id = `${spec.name}-${String(running.submitted).padStart(7, '0')}`
      const task: SimTask = {
        id,
        trainer: spec,
        samples: spec.samples,
        batch: spec.kind === 'sync' ? running.batch : 0,
        submittedMs: this.#clock.elapsed,
        ...(spec.stalenessLimit !== undefined && { policyVersion: this.#version }),
      }
      running.submitted += spec.samples
      running.open += 1
      this.#open.set(id, { task, running })
      tasks.push(task)
    }
    if (running.submitted >= spec.sessions) this.#waiting -= 1
    if (tasks.length > 0) this.#party.submit(tasks)
  }
}
