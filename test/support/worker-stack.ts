import pino from 'pino'
import { createClient } from '../../src/client/client.ts'
import { systemClock } from '../../src/lib/async/clock.ts'
import { Worker, type WorkerOptions } from '../../src/node/worker.ts'
import { ANSWER_SCRIPT } from './answer-script.ts'
import { NodeStack, type NodeStackOptions } from './node-stack.ts'

export interface WorkerStackOptions extends NodeStackOptions {
  url: string
  worker?: Partial<WorkerOptions>
}

/** A real node in this process that has joined a server, with a scripted engine. Its connection to the server can be cut. */
export class WorkerStack implements AsyncDisposable {
  readonly stack: NodeStack
  readonly worker: Worker
  readonly line: Line

  private constructor(stack: NodeStack, worker: Worker, line: Line) {
    this.stack = stack
    this.worker = worker
    this.line = line
  }

  static async start({ url, worker: more, ...options }: WorkerStackOptions): Promise<WorkerStack> {
    const nodeId = options.nodeId ?? `node-${process.pid}`
    const script = options.upstream === undefined ? ANSWER_SCRIPT : undefined
    const stack = await NodeStack.start({ member: 'all', script, ...options, nodeId })
    const line = new Line()
    const { widths } = stack.node
    try {
      const worker = await Worker.start({
        client: createClient({
          baseUrl: url,
          attempts: 1,
          fetch: (request, { signal }) => fetch(request, { signal: line.during(signal) }),
        }),
        node: stack.node,
        nodeId,
        registration: {
          gateway_url: stack.opened.gateway.url,
          max_init_workers: widths.init,
          max_run_workers: widths.run,
          max_postrun_workers: widths.postrun,
          heartbeat_interval_seconds: 30,
        },
        labels: stack.opened.labels,
        affinity: () => stack.opened.affinity(),
        version: '0.0.0',
        minFreeMb: 0,
        logger: pino({ level: process.env['WORKER_LOG'] ?? 'silent' }),
        clock: systemClock,
        ...more,
      })
      return new WorkerStack(stack, worker, line)
    } catch (error) {
      await stack[Symbol.asyncDispose]()
      throw error
    }
  }

  get dir(): string {
    return this.stack.dir
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.worker[Symbol.asyncDispose]()
    await this.stack[Symbol.asyncDispose]()
  }
}

/** Connection between a node and its server. */
export class Line {
  #cut = new AbortController()

  /** Rejects pending and later requests. */
  cut(): void {
    this.#cut.abort(new TypeError('fetch failed'))
  }

  mend(): void {
    this.#cut = new AbortController()
  }

  during(signal: AbortSignal | undefined): AbortSignal {
    return AbortSignal.any([...(signal === undefined ? [] : [signal]), this.#cut.signal])
  }
}
