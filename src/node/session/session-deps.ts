import type { Socket } from 'node:net'
import type { SessionAccess, SessionOptions } from '../../gateway/gateway.ts'
import type { MonotonicClock } from '../../lib/async/clock.ts'
import type { Slots } from '../../lib/async/slots.ts'
import type { Failure } from '../../model/failure.ts'
import type { AgentSpec, TaskRequest } from '../../model/task.ts'
import type { Builder } from '../../trajectory/builders/builder.ts'
import type { Evaluator } from '../../trajectory/evaluators/evaluator.ts'
import type { SessionBuilds } from '../build/session-build.ts'
import type { RunnableHarness } from '../harness/find-runnable.ts'
import type { HostGate } from '../sandbox/host-access.ts'
import type { SandboxLeases } from '../sandbox/keep-alive.ts'
import type { WarmStarts } from '../sandbox/prepare/warm-start.ts'
import type { Runtime } from '../sandbox/runtimes/runtime.ts'
import type { ArtifactPolicy } from './artifacts.ts'
import type { SendToEngine } from './engine-control.ts'
import type { RunTimes } from './run-times.ts'

/** An opened runtime, and the prepared sandboxes that it can start from. */
export interface OpenRuntime {
  runtime: Runtime
  starts: WarmStarts
}

/** What a node provides to each of its sessions. */
export interface SandboxedSessionDeps {
  nodeId: string
  gateway: SessionGateway
  model: { name: string; contextTokens: number; images: boolean }
  /** Sends one request to the engine that belongs to no session. Rejects if the engine does not answer it. */
  sendToEngine: SendToEngine
  /** Loads the recorded calls of a session and builds its samples. */
  builds: SessionBuilds
  openRuntime(spec: TaskRequest['runtime']): Promise<OpenRuntime>
  findHarness(agent: AgentSpec): Promise<RunnableHarness>
  /** Rejects an invalid builder before the harness runs. */
  createBuilder(spec: TaskRequest['builder']): Promise<Builder>
  createEvaluator(spec: NonNullable<TaskRequest['evaluator']>): Promise<Evaluator>
  /** Restricts what tasks may use of this machine. Absent: tasks are not restricted. */
  host?: Pick<HostGate, 'admit' | 'assertGradable'>
  clock: MonotonicClock
  leases: SandboxLeases
  runTimes: RunTimes
  startTimes: RunTimes
  /** Limits the graders of all sessions that are started before they are needed. */
  standby: Slots
  /** Folder for files that were copied out of sandboxes, while they are graded. No sandbox can read it. */
  scratch: string
  /** Size limit of each of the harness's stdout and stderr. */
  outputBytes: number
  /** Memory limit of a sandbox whose task sets none, in MB. Absent: no limit. */
  defaultMemoryMb?: number
  artifacts: ArtifactPolicy
  /** `report`: the session also writes a result file, for delivery to a server. */
  recovery?: 'again' | 'report'
}

/** The methods of a gateway that a session uses. */
export interface SessionGateway {
  openSession(options: SessionOptions): Promise<SessionAccess>
  /** Returns a failure if the call log is incomplete. */
  closeSession(id: string): Promise<Failure | undefined>
  /** The socket must be paused and unread. */
  accept(sessionId: string, socket: Socket): void
}
