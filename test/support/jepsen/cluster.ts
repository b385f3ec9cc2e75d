import { mkdir, writeFile } from 'node:fs/promises'
import { writeFileSync } from 'node:fs'
import { createServer, type AddressInfo } from 'node:net'
import { join } from 'node:path'
import { startEngine } from '../../../packages/tiny-engine/src/engine.ts'
import type { DatabaseLocation } from '../../../src/store/database.ts'
import { bubblewrapSettings } from '../bubblewrap.ts'
import { copyDatabase } from '../database-template.ts'
import type { Postgres } from '../postgres.ts'
import type { HistoryLog } from './history.ts'
import { openNetwork } from './network.ts'
import { Program } from './program.ts'
import type { Chance } from './random.ts'
import { MARKER } from './sweep.ts'
import { Tap } from './tap.ts'
import { openGrader, openWitness } from './witness.ts'

export interface ClusterOptions {
  dir: string
  /** Id of the run, set in the environment of all processes. */
  run: string
  postgres?: { cluster: Postgres; url: string }
  nodes: number
  leaseMs: number
  log: HistoryLog
  chance: Chance
}

export interface ClusterNode {
  nodeId: string
  /** Data folder of the node. */
  home: string
  program: Program
  tap: Tap
  cut(): void
  heal(): void
}

const MAIN = join(import.meta.dirname, '../../../src/cli/main.ts')
const SHIFT_CLOCK = join(import.meta.dirname, 'shift-clock.ts')
export const TOKENS = { trainer: 'jepsen-trainer-0123456789abcdef', node: 'jepsen-node-0123456789abcdef' }

/** A server and its nodes in separate processes, with an engine that records all runs and connections that can be cut. */
export class Cluster implements AsyncDisposable {
  readonly #owned: AsyncDisposableStack
  readonly #starting = new Map<Program, Promise<void>>()
  readonly #dir: string
  readonly log: HistoryLog
  readonly leaseMs: number
  readonly serverUrl: string
  readonly graderUrl: string
  readonly filesDir: string
  readonly database: DatabaseLocation
  readonly server: Program
  readonly nodes: readonly ClusterNode[]
  readonly postgres: Postgres | undefined
  /** Reason why nodes share one network; undefined if each has its own. */
  readonly whyShared: string | undefined
  readonly crashes: string[]

  private constructor(parts: Parts, owned: AsyncDisposableStack) {
    this.#owned = owned
    this.#dir = parts.dir
    this.log = parts.log
    this.leaseMs = parts.leaseMs
    this.serverUrl = parts.serverUrl
    this.graderUrl = parts.graderUrl
    this.filesDir = join(parts.dir, 'server', 'files')
    this.database = parts.database
    this.server = parts.server
    this.nodes = parts.nodes
    this.postgres = parts.postgres?.cluster
    this.whyShared = parts.whyShared
    this.crashes = parts.crashes
  }

  static async start(options: ClusterOptions): Promise<Cluster> {
    await using owned = new AsyncDisposableStack()
    const { dir, log, chance } = options
    await mkdir(dir, { recursive: true })
    const tokenFiles = { trainer: join(dir, 'trainer.token'), node: join(dir, 'node.token') }
    await writeFile(tokenFiles.trainer, TOKENS.trainer, { mode: 0o600 })
    await writeFile(tokenFiles.node, TOKENS.node, { mode: 0o600 })
    const network = owned.use(openNetwork(options.nodes))
    const engine = owned.use(await startEngine({ script: ENGINE_SCRIPT }))
    const grader = owned.use(await openGrader(network.host))
    const port = await findPort()
    const serverUrl = `http://127.0.0.1:${port}`
    const crashes: string[] = []
    const makeProgram = (name: string, verb: string, config: unknown, prefix: readonly string[] = []): Program => {
      const file = join(dir, `${name}.json`)
      // JSON is valid YAML.
      writeFileSync(file, JSON.stringify(config, undefined, 2))
      const clock = join(dir, `${name}.clock`)
      writeFileSync(clock, '0')
      const node = [process.execPath, '--import', SHIFT_CLOCK, MAIN, verb, '--config', file, '--json']
      return owned.use(
        new Program({
          name,
          // The process receives SIGKILL when this process ends.
          command: [...prefix, 'setpriv', '--pdeathsig=KILL', ...node],
          cwd: dir,
          env: {
            PATH: process.env['PATH'] ?? '',
            // Reduces the cost of the many restarts.
            NODE_COMPILE_CACHE: process.env['NODE_COMPILE_CACHE'],
            HOME: dir,
            [MARKER]: options.run,
            POLAR_JEPSEN_CLOCK: clock,
          },
          logFile: join(dir, `${name}.log`),
          onCrash: (what) => crashes.push(what),
        }),
      )
    }
    const server = makeProgram('server', 'server', serverConfig({ ...options, port, tokenFiles }))
    const nodes: ClusterNode[] = []
    for (const [place, { prefix, serverHost, wire }] of network.links.entries()) {
      const nodeId = `node-${place}`
      const tap = owned.use(await Tap.open(serverHost, { serverUrl, log, chance: chance.fork() }))
      const witness = owned.use(await openWitness(network.host, nodeId, engine.url, log))
      const data = join(dir, nodeId)
      const urls = { server: tap.url, engine: witness.url }
      const config = nodeConfig(nodeId, { data, urls, tokenFile: tokenFiles.node, graders: network.host })
      const program = makeProgram(nodeId, 'node', config, prefix)
      nodes.push({
        nodeId,
        home: join(data, 'nodes', nodeId),
        program,
        tap,
        cut: () => (wire === undefined ? tap.cut() : wire.cut()),
        heal: () => (wire === undefined ? tap.heal() : wire.heal()),
      })
    }
    const url = options.postgres?.url
    const database = url === undefined ? { dir: join(dir, 'server', 'database') } : { url }
    const parts = { ...options, serverUrl, graderUrl: grader.url, database, server, nodes, crashes }
    if (url === undefined) await copyDatabase(join(dir, 'server', 'database'))
    const cluster = new Cluster({ ...parts, whyShared: network.whyShared }, owned.move())
    for (const program of cluster.programs) cluster.bringUp(program)
    try {
      await cluster.allUp()
      return cluster
    } catch (error) {
      await cluster[Symbol.asyncDispose]()
      throw error
    }
  }

  get programs(): Program[] {
    return [this.server, ...this.nodes.map(({ program }) => program)]
  }

  /** Does not wait for the start, because dependencies of the program may be unavailable. */
  bringUp(program: Program): void {
    const starting = (this.#starting.get(program) ?? Promise.resolve()).then(() =>
      program.isRunning ? undefined : program.start(),
    )
    starting.catch(() => {})
    this.#starting.set(program, starting)
  }

  async untilUp(program: Program): Promise<void> {
    if (!program.isRunning) this.bringUp(program)
    await this.#starting.get(program)
  }

  /** Resolves when all programs run. Restarts programs that have exited, like a supervisor. */
  async allUp(): Promise<void> {
    await Promise.all(this.programs.map((program) => this.untilUp(program)))
  }

  /** Sets the offset of a process's wall clock. */
  setClock(name: string, offsetMs: number): void {
    writeFileSync(join(this.#dir, `${name}.clock`), String(offsetMs))
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#owned.disposeAsync()
  }
}

function serverConfig(options: ClusterOptions & { port: number; tokenFiles: Record<keyof typeof TOKENS, string> }) {
  const { dir, postgres, port, leaseMs, tokenFiles } = options
  return {
    data: join(dir, 'server'),
    log: 'info',
    server: {
      port,
      ...(postgres !== undefined && { database: postgres.url }),
      lease_seconds: leaseMs / 1000,
      tokens: [
        { name: 'trainer', scopes: ['trainer', 'read'], token_file: tokenFiles.trainer },
        { name: 'nodes', scopes: ['node'], token_file: tokenFiles.node },
      ],
      callbacks: { timeout_seconds: 5 },
    },
  }
}

interface NodePlace {
  data: string
  urls: { server: string; engine: string }
  tokenFile: string
  graders: string
}

function nodeConfig(nodeId: string, { data, urls, tokenFile, graders }: NodePlace) {
  return {
    data,
    log: 'info',
    node: {
      id: nodeId,
      server: urls.server,
      token_file: tokenFile,
      widths: { init: 2, ready: 2, run: 4, postrun: 2 },
      runtime: 'local',
      // The node cannot fetch a bwrap from its own network namespace.
      runtimes: { bubblewrap: bubblewrapSettings },
      allow: { hosts: [graders] },
      min_free_mb: 0,
      // Nothing is retained, so that every folder that remains is a leak.
      retention: { sessions: 0 },
    },
    engine: { url: urls.engine, kind: 'vllm' },
  }
}

interface Parts extends Omit<ClusterOptions, 'nodes'> {
  serverUrl: string
  graderUrl: string
  database: DatabaseLocation
  server: Program
  nodes: readonly ClusterNode[]
  whyShared: string | undefined
  crashes: string[]
}

const ENGINE_SCRIPT = `
order:
  - text: So you are.
repeat: cycle
`

async function findPort(): Promise<number> {
  const probe = createServer()
  await new Promise<void>((resolve) => probe.listen(0, '127.0.0.1', resolve))
  const { port } = probe.address() as AddressInfo
  await new Promise((resolve) => probe.close(resolve))
  return port
}
