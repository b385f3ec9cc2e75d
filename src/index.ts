/** The library: opens an engine, a gateway, a node, a server or all of them, and reads recorded sessions. */

// Composition: each function opens a part from settings; disposing the result closes the part. `openUp()` opens all parts.
export { openEngine, type EngineChoice, type OpenEngine } from './compose/open-engine.ts'
export { openGateway } from './compose/open-gateway.ts'
export { openNode, type NodeChoice, type OpenNode } from './compose/open-node.ts'
export { openServer, type OpenServer } from './compose/open-server.ts'
export { openUp, type OpenUp, type Settings } from './compose/open-up.ts'
export { openWorker, type OpenWorker, type WorkerChoice } from './compose/open-worker.ts'
export { createLogger } from './compose/create-logger.ts'
export { loadConfig, type LoadedConfig } from './config/load-config.ts'

// Client: typed calls of the server's HTTP API, and the schemas of their contents.
export { createClient, type Client, type ClientOptions } from './client/client.ts'
export { TaskRequest, TaskResult, TaskStatus } from './model/task.ts'
export { SessionResult } from './model/session.ts'
export { Trace, Trajectory } from './model/trajectory.ts'

// Recordings: the store that a gateway writes sessions to, and the reader.
export { createCallLogStore } from './store/call-log/store.ts'
export { createCallLogReader } from './store/call-log/reader.ts'
export type { SessionLog, SessionOpening, SessionReader, SessionStore, TurnEnd, TurnIntent } from './store/store.ts'
export type { SessionRecord } from './model/session.ts'
export type { StreamEvent } from './model/stream-event.ts'
export type { Choice, Turn, TurnRequest, TurnResponse } from './model/turn.ts'

// Gateway: a gateway within this process, and connections to engines.
export { Gateway, type GatewayOptions, type SessionAccess } from './gateway/gateway.ts'
export { createVllm, type VllmOptions } from './gateway/upstreams/vllm.ts'
export { createUpstream, detectKind, upstreams, type UpstreamConfig } from './gateway/upstreams/index.ts'
export type { Capabilities, Finding, ProbeReport, Upstream, UpstreamReply } from './gateway/upstreams/upstream.ts'

// Plug points: registries, and the interfaces that modules of builders, evaluators, exporters, runtimes and harnesses implement.
export { builders } from './trajectory/builders/index.ts'
export type {
  Collection,
  Evaluation,
  Evaluator,
  EvaluatorDeps,
  EvaluatorNeeds,
  Evidence,
} from './trajectory/evaluators/evaluator.ts'
export { evaluators } from './trajectory/evaluators/index.ts'
export type { Exporter, ExportWriter } from './trajectory/exporters/exporter.ts'
export { exporters } from './trajectory/exporters/index.ts'
export { createExporter } from './trajectory/create-exporter.ts'
export { runtimes } from './node/sandbox/runtimes/index.ts'
export type { Runtime, RuntimeDeps, Sandbox, SandboxSpec } from './node/sandbox/runtimes/runtime.ts'
export {
  defineHarness,
  type Harness,
  type HarnessLaunch,
  type HarnessSetup,
  type PackagedHarness,
} from './node/harness/presets/harness.ts'
export type { Plug } from './lib/plug.ts'

// Failures and ids.
export { RolloutError, type Failure, type FailureCode } from './model/failure.ts'
export { randomIds } from './lib/random-ids.ts'
