import { mkdtemp, realpath } from 'node:fs/promises'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import pino from 'pino'
import { openEngine, type OpenEngine } from '../../src/compose/open-engine.ts'
import { openNode, type NodeChoice, type OpenNode } from '../../src/compose/open-node.ts'
import { randomIds } from '../../src/lib/random-ids.ts'
import type { SessionOrder } from '../../src/model/session-order.ts'
import { TaskRequest } from '../../src/model/task.ts'
import type { SessionEvent } from '../../src/node/node.ts'
import { ArtifactPolicy } from '../../src/node/session/artifacts.ts'
import { StageWidths } from '../../src/node/session/stages.ts'
import { removeTree } from '../../src/node/sandbox/linux/records.ts'

export interface NodeStackOptions extends Partial<
  Pick<
    NodeChoice,
    'widths' | 'budgets' | 'runtime' | 'runtimeSettings' | 'modules' | 'artifacts' | 'nodeId' | 'member' | 'env'
  >
> {
  /** Script file of the tiny engine; absent: its model answers. */
  script?: string
  upstream?: string
  /** Data folder; default: a temporary folder. */
  dir?: string
  onEvent?: (event: SessionEvent) => void
}

const ids = randomIds(Date.now)

/** A real node with a tiny engine and a gateway in this process. */
export class NodeStack implements AsyncDisposable {
  readonly #owned: AsyncDisposableStack
  readonly engine: OpenEngine
  readonly opened: OpenNode
  readonly dir: string
  readonly events: SessionEvent[]

  private constructor(parts: Pick<NodeStack, 'engine' | 'opened' | 'dir' | 'events'>, owned: AsyncDisposableStack) {
    this.engine = parts.engine
    this.opened = parts.opened
    this.dir = parts.dir
    this.events = parts.events
    this.#owned = owned
  }

  static async start(options: NodeStackOptions = {}): Promise<NodeStack> {
    await using owned = new AsyncDisposableStack()
    const scratch = await mkdtemp(join(await realpath(tmpdir()), 'polar-node-'))
    owned.defer(() => removeTree(scratch))
    const dir = options.dir ?? join(scratch, 'node')
    const events: SessionEvent[] = []
    const engine = owned.use(await openEngine({ script: options.script, url: options.upstream }))
    const opened = owned.use(
      await openNode({
        nodeId: options.nodeId ?? `test-${process.pid}`,
        dir,
        engine,
        runtime: options.runtime,
        runtimeSettings: options.runtimeSettings,
        widths: options.widths ?? StageWidths.parse({}),
        budgets: options.budgets ?? { init: 60, evaluate: 60 },
        artifacts: options.artifacts ?? ArtifactPolicy.parse({}),
        modules: options.modules ?? [],
        images: false,
        ...(options.member === undefined ? {} : { member: options.member }),
        env: options.env ?? process.env,
        logger: pino({ level: 'silent' }),
        onEvent: (event) => {
          events.push(event)
          options.onEvent?.(event)
        },
      }),
    )
    return new NodeStack({ engine, opened, dir, events }, owned.move())
  }

  get node(): OpenNode['node'] {
    return this.opened.node
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync()
  }
}

/** Returns a task with defaults. */
export function taskOf(task: Record<string, unknown>): TaskRequest {
  return TaskRequest.parse({ task_id: 'task', instruction: 'Do it.', builder: { strategy: 'prefix_merging' }, ...task })
}

export function shellTask(command: string, more: Record<string, unknown> = {}): TaskRequest {
  return taskOf({ agent: { harness: 'shell', custom_shell: { command } }, ...more })
}

export function orderOf(task: TaskRequest): SessionOrder {
  return { schemaVersion: 1, sessionId: ids.next('ses'), attempt: 1, task }
}
