# Written by `npm run docs` from the route table in src/api. Do not edit.
"""Types of requests and answers of the Polar rollout server. Answers may have more fields than listed here."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if sys.version_info >= (3, 11):
    from typing import NotRequired
elif TYPE_CHECKING:
    from typing_extensions import NotRequired

FailureCode = Literal[
    "config.invalid",
    "request.malformed",
    "request.too-large",
    "request.unsupported-encoding",
    "request.unauthorized",
    "request.unknown-route",
    "request.wrong-method",
    "request.forbidden",
    "request.not-found",
    "request.conflict",
    "request.stale",
    "request.no-node",
    "request.over-quota",
    "request.over-storage",
    "request.crashed-gateway",
    "request.context-overflow",
    "request.client-gone",
    "upstream.unreachable",
    "upstream.rate-limited",
    "upstream.overloaded",
    "upstream.refused",
    "upstream.failed",
    "upstream.out-of-memory",
    "upstream.reset",
    "upstream.timeout",
    "upstream.bad-stream",
    "runtime.gone",
    "runtime.out-of-disk",
    "runtime.unavailable",
    "runtime.unsupported",
    "runtime.start-failed",
    "runtime.copy-failed",
    "workspace.file-missing",
    "workspace.too-large",
    "workspace.unsafe-file",
    "runtime.prepare-failed",
    "runtime.image-missing",
    "harness.not-found",
    "harness.install-failed",
    "harness.damaged",
    "harness.bad-setup",
    "harness.no-answer",
    "harness.exit-nonzero",
    "harness.out-of-memory",
    "evaluator.crashed",
    "evaluator.timeout",
    "evaluator.tests-not-reported",
    "session.cancelled",
    "session.init-timeout",
    "session.agent-timeout",
    "session.too-large",
    "session.node-lost",
    "session.gateway-lost",
    "server.unreachable",
    "server.failed",
    "server.bad-answer",
    "server.unconfirmed",
    "store.unavailable",
    "store.corrupt",
    "store.newer-schema",
    "internal.bug",
]


SessionStatus = Literal[
    "REGISTERED",
    "INITIALIZING",
    "READY",
    "RUNNING",
    "POST_RUN",
    "BUILDING",
    "EVALUATING",
    "COMPLETED",
    "ERROR",
    "TIMEOUT",
    "CANCELLED",
]


TaskState = Literal[
    "running",
    "completed",
    "failed",
    "cancelling",
    "cancelled",
]


class SubmitRequest(TypedDict):
    task_id: str
    instruction: str
    num_samples: NotRequired[int]
    timeout_seconds: NotRequired[float]
    runtime: NotRequired[RuntimeSpecInput | None]
    agent: AgentSpecInput
    builder: NotRequired[SubmitRequestBuilder]
    evaluator: NotRequired[EvaluatorSpecInput | None]
    callback_url: NotRequired[str | None]
    dispatch_priority: NotRequired[int]
    early_stop_min_usable_sessions: NotRequired[int | None]
    budgets: NotRequired[SubmitRequestBudgets | None]
    sampling: NotRequired[SubmitRequestSampling | None]
    training: NotRequired[SubmitRequestTraining | None]
    metadata: NotRequired[dict[str, Any]]
    # Labels that a node must have to lease sessions of the task.
    requires: NotRequired[list[str]]
    # How many attempts of one session may fail because of infrastructure before the session fails.
    max_failures: NotRequired[int]
    # Policy version that the task was made for.
    policy_version: NotRequired[int | None]
    # How many versions a token may be older than the current version; absent: any. A session with an older token
    # is cancelled, and its result refused. With `policy_version`, the task is cancelled once the current version
    # exceeds that version by more than the limit.
    staleness_limit: NotRequired[int | None]


class RuntimeSpecInput(TypedDict):
    backend: NotRequired[str | None]
    image: NotRequired[str | None]
    prepare: NotRequired[list[RuntimeSpecInputPrepareUploadFile | RuntimeSpecInputPrepareUploadDir | RuntimeSpecInputPrepareCheckout | RuntimeSpecInputPrepareExec]]
    eval_prepare: NotRequired[list[RuntimeSpecInputPrepareUploadFile | RuntimeSpecInputPrepareUploadDir | RuntimeSpecInputPrepareCheckout | RuntimeSpecInputPrepareExec] | None]
    env: NotRequired[dict[str, str]]
    network: NotRequired[str | None]
    workdir: NotRequired[str | None]
    cpus: NotRequired[float | None]
    memory_mb: NotRequired[int | None]
    storage_mb: NotRequired[int | None]
    pids: NotRequired[int | None]
    gpus: NotRequired[int]
    allow_internet: NotRequired[bool | None]
    allow_hosts: NotRequired[list[str] | None]
    import_path: NotRequired[str | None]
    kwargs: NotRequired[dict[str, Any]]
    internet_volumes: NotRequired[list[str] | None]
    direct_exec_init_command: NotRequired[str | None]


class RuntimeSpecInputPrepareUploadFile(TypedDict):
    type: Literal["upload_file"]
    source: str
    target: str
    command: NotRequired[None]
    cwd: NotRequired[None]
    env: NotRequired[None]
    max_attempts: NotRequired[Literal[1] | None]
    retry_backoff_seconds: NotRequired[Literal[0] | None]


class RuntimeSpecInputPrepareUploadDir(TypedDict):
    type: Literal["upload_dir"]
    source: str
    target: str
    command: NotRequired[None]
    cwd: NotRequired[None]
    env: NotRequired[None]
    max_attempts: NotRequired[Literal[1] | None]
    retry_backoff_seconds: NotRequired[Literal[0] | None]


class RuntimeSpecInputPrepareCheckout(TypedDict):
    type: Literal["checkout"]
    repository: str
    commit: str
    target: str
    depth: NotRequired[int | None]


class RuntimeSpecInputPrepareExec(TypedDict):
    type: Literal["exec"]
    command: str
    cwd: NotRequired[str | None]
    env: NotRequired[dict[str, str] | None]
    max_attempts: NotRequired[int]
    retry_backoff_seconds: NotRequired[float]
    source: NotRequired[None]
    target: NotRequired[None]


class AgentSpecInput(TypedDict):
    harness: NotRequired[str | None]
    import_path: NotRequired[str | None]
    model_name: NotRequired[str | None]
    settings: NotRequired[dict[str, Any]]
    env: NotRequired[dict[str, str]]
    mcp_servers: NotRequired[list[AgentSpecInputMcpServer]]
    skills_path: NotRequired[str | None]
    custom_shell: NotRequired[AgentSpecInputCustomShell | None]


class AgentSpecInputMcpServer(TypedDict):
    name: str
    transport: Literal["stdio", "sse", "streamable-http"]
    command: NotRequired[str | None]
    args: NotRequired[list[str]]
    url: NotRequired[str | None]


class AgentSpecInputCustomShell(TypedDict):
    command: str
    cwd: NotRequired[str | None]
    env: NotRequired[dict[str, str] | None]


class SubmitRequestBuilder(TypedDict):
    strategy: str
    config: NotRequired[dict[str, Any]]


class EvaluatorSpecInput(TypedDict):
    strategy: str
    config: NotRequired[dict[str, Any]]
    env: NotRequired[dict[str, str]]
    refresh_runtime: NotRequired[bool]


class SubmitRequestBudgets(TypedDict):
    init: NotRequired[float | None]
    agent: NotRequired[float | None]
    evaluate: NotRequired[float | None]
    session: NotRequired[float | None]


class SubmitRequestSampling(TypedDict):
    temperature: NotRequired[float | None]
    top_p: NotRequired[float | None]
    top_k: NotRequired[int | None]
    min_p: NotRequired[float | None]
    seed: NotRequired[int | None]
    max_tokens: NotRequired[int | None]
    presence_penalty: NotRequired[float | None]
    frequency_penalty: NotRequired[float | None]


class SubmitRequestTraining(TypedDict):
    labels: NotRequired[Literal["all"] | list[Literal["main", "subagent", "compaction", "side-call", "retry", "abandoned"]] | None]
    allow_steered: NotRequired[Literal["all"] | list[Literal["response-format", "tool-choice", "strict-tools", "prefill"]] | None]


class SubmitTaskAnswer(TypedDict):
    task_id: str
    status: TaskState
    warnings: NotRequired[list[str]]


class SubmitBatchBody(TypedDict):
    tasks: list[SubmitRequest]


class SubmitBatchAnswer(TypedDict):
    outcomes: list[SubmitBatchAnswerOutcome]


class SubmitBatchAnswerOutcome(TypedDict):
    task_id: str
    outcome: Literal["created", "same", "conflict", "stale", "cancelled", "deleted", "no-node"]
    warnings: NotRequired[list[str]]


class TaskStatus(TypedDict):
    task_id: str
    status: TaskState
    polar_status: NotRequired[TaskState | None]
    results: list[SessionResult]
    result_paths: list[str]
    total_sessions: int
    completed_sessions: int


class SessionResult(TypedDict):
    session_id: str
    task_id: str
    status: SessionStatus
    polar_status: NotRequired[SessionStatus | None]
    trajectory: SessionResultTrajectory
    timing: SessionTiming
    polar_timing: NotRequired[SessionTiming | None]
    node_id: NotRequired[str | None]
    error: NotRequired[str | None]
    failure: NotRequired[Failure | None]
    metadata: dict[str, Any]


class SessionResultTrajectory(TypedDict):
    status: Literal["COMPLETED", "TIMEOUT", "ERROR"]
    metadata: dict[str, Any]
    traces: list[Trace]
    error: NotRequired[str | None]


class Trace(TypedDict):
    prompt_ids: list[int]
    response_ids: list[int]
    loss_mask: list[Literal[0, 1]]
    prompt_messages: list[Any]
    response_messages: list[Any]
    tools: NotRequired[list[Any] | None]
    finish_reason: NotRequired[str | None]
    response_logprobs: NotRequired[list[float | None] | None]
    reward: NotRequired[float | None]
    metadata: dict[str, Any]


class SessionTiming(TypedDict):
    register_to_init_queue_ms: NotRequired[float | None]
    init_ms: NotRequired[float | None]
    ready_queue_ms: NotRequired[float | None]
    run_ms: NotRequired[float | None]
    postrun_ms: NotRequired[float | None]
    build_ms: NotRequired[float | None]
    eval_ms: NotRequired[float | None]
    eval_prewarm_idle_ms: NotRequired[float | None]
    eval_prewarm_saved_ms: NotRequired[float | None]


class Failure(TypedDict):
    code: FailureCode
    message: str
    status: int
    retryAfterSeconds: NotRequired[float]
    param: NotRequired[str]


class UpdateTaskBody(TypedDict):
    dispatch_priority: NotRequired[int]
    # Null: no early stop. If the value is already reached, the remaining sessions are cancelled at once.
    early_stop_min_usable_sessions: NotRequired[int | None]


class TaskSummary(TypedDict):
    task_id: str
    status: TaskState
    harness: str | None
    model: str | None
    num_samples: int
    completed_sessions: int
    errored_sessions: int
    mean_reward: float | None
    mean_traces: float | None
    mean_completions: float | None
    # Unix seconds.
    created_at: float
    # Unix seconds.
    updated_at: float
    source: Literal["live"]
    valid_sessions: int
    usable_sessions: int
    cancelled_sessions: int
    refills: int
    dispatch_priority: int
    policy_version: int | None


class DeleteTaskAnswer(TypedDict):
    task_id: str
    deleted_sessions: int
    deleted_bytes: int


class RetryTaskBody(TypedDict):
    statuses: NotRequired[list[Literal["ERROR", "TIMEOUT", "CANCELLED"]]]


class RetryTaskAnswer(TypedDict):
    task_id: str
    status: TaskState
    retried_sessions: int


class ListTasksAnswer(TypedDict):
    tasks: list[TaskSummary]
    next_cursor: NotRequired[str]


class ListTaskSessionsAnswer(TypedDict):
    task_id: str
    sessions: list[SessionSummary]
    unrunnable: str | None
    next_cursor: NotRequired[str]


class SessionSummary(TypedDict):
    session_id: str
    task_id: str
    status: SessionStatus
    node_id: str | None
    reward: float | None
    timing: SessionTiming
    error: str | None
    sample: int
    # 0 until a node has leased the session.
    attempt: int
    failure: Failure | None
    progress: SessionSummaryProgress | None


class SessionSummaryProgress(TypedDict):
    calls: int
    tokens: int


class ListTaskResultsAnswer(TypedDict):
    task_id: str
    results: list[ListTaskResultsAnswerResult]
    next_cursor: NotRequired[str]


class ListTaskResultsAnswerResult(TypedDict):
    session_id: str
    attempt: int
    path: str
    # Digest of the stored bytes.
    digest: str
    bytes: int


class ListSessionsAnswer(TypedDict):
    sessions: list[SessionSummary]
    next_cursor: NotRequired[str]


class GetSessionAnswer(TypedDict):
    session_id: str
    task_id: str
    status: SessionStatus
    node_id: str | None
    reward: float | None
    timing: SessionTiming
    error: str | None
    sample: int
    # 0 until a node has leased the session.
    attempt: int
    failure: Failure | None
    progress: SessionSummaryProgress | None
    attempts: list[GetSessionAnswerAttempt]


class GetSessionAnswerAttempt(TypedDict):
    attempt: int
    node_id: str | None
    ending: str | None
    failure: Failure | None
    leased_at: float | None
    ended_at: float | None


class CancelSessionAnswer(TypedDict):
    session_id: str
    status: SessionStatus
    cancelled: bool


class ListArtifactsAnswer(TypedDict):
    session_id: str
    artifacts: list[ListArtifactsAnswerArtifact]


class ListArtifactsAnswerArtifact(TypedDict):
    path: str
    bytes: int
    is_cut: bool
    digest: str | None


class RegisterNodeBody(TypedDict):
    # 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
    node_id: str
    gateway_url: str
    max_init_workers: int
    max_run_workers: int
    max_postrun_workers: int
    heartbeat_interval_seconds: NotRequired[float]


class NodeInfo(TypedDict):
    # 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
    node_id: str
    gateway_url: str
    max_init_workers: int
    max_run_workers: int
    max_postrun_workers: int
    heartbeat_interval_seconds: float
    metrics: NodeStageMetrics
    dispatch_reservations: int
    healthy: bool
    draining: bool
    last_heartbeat: str
    labels: list[str]
    leased_sessions: int


class NodeStageMetrics(TypedDict):
    init_queue_depth: int
    init_inflight: int
    ready_depth: int
    run_inflight: int
    postrun_queue_depth: int
    postrun_inflight: int


class HeartbeatNodeBody(TypedDict):
    metrics: NotRequired[NodeStageMetricsInput]


class NodeStageMetricsInput(TypedDict):
    init_queue_depth: NotRequired[int]
    init_inflight: NotRequired[int]
    ready_depth: NotRequired[int]
    run_inflight: NotRequired[int]
    postrun_queue_depth: NotRequired[int]
    postrun_inflight: NotRequired[int]


class PostSessionResultBody(TypedDict):
    session_id: str
    task_id: str
    status: SessionStatus
    polar_status: NotRequired[SessionStatus | None]
    trajectory: SessionResultTrajectory
    timing: NotRequired[PostSessionResultBodyTiming]
    polar_timing: NotRequired[SessionTiming | None]
    node_id: NotRequired[str | None]
    error: NotRequired[str | None]
    failure: NotRequired[Failure | None]
    metadata: NotRequired[dict[str, Any]]


class PostSessionResultBodyTiming(TypedDict):
    register_to_init_queue_ms: NotRequired[float | None]
    init_ms: NotRequired[float | None]
    ready_queue_ms: NotRequired[float | None]
    run_ms: NotRequired[float | None]
    postrun_ms: NotRequired[float | None]
    build_ms: NotRequired[float | None]
    eval_ms: NotRequired[float | None]
    eval_prewarm_idle_ms: NotRequired[float | None]
    eval_prewarm_saved_ms: NotRequired[float | None]


class PostSessionResultAnswer(TypedDict):
    status: Literal["accepted"]


class JoinNodeBody(TypedDict):
    gateway_url: str
    max_init_workers: int
    max_run_workers: int
    max_postrun_workers: int
    heartbeat_interval_seconds: NotRequired[float]
    labels: NotRequired[list[str]]
    # Version of Polar on the node.
    version: str
    # Identifies the process. If it changes, the node has restarted, and sessions that `holding` does not list are
    # requeued.
    boot_id: str
    # Boot id of the replaced process, as reported by `taken`.
    replaces: NotRequired[str]
    # Attempts that are running, or finished and not delivered.
    holding: NotRequired[list[JoinNodeBodyHolding]]


class JoinNodeBodyHolding(TypedDict):
    session_id: str
    # Fencing token: incremented for each new lease of the session.
    attempt: int


class JoinNodeAnswerJoined(TypedDict):
    kind: Literal["joined"]
    node: NodeInfo
    lease_ms: int
    outcomes: list[JoinNodeAnswerJoinedOutcome]
    # Size limit of one part of an upload.
    max_part_bytes: int
    # Size limit of a result that is sent inline in `complete`. Absent: inline results are not accepted.
    max_inline_bytes: NotRequired[int]
    # The node applies it before it leases sessions. Absent: the server has no policy state.
    policy: NotRequired[JoinNodeAnswerJoinedPolicy]


class JoinNodeAnswerJoinedOutcome(TypedDict):
    session_id: str
    # Fencing token: incremented for each new lease of the session.
    attempt: int
    kind: Literal["held", "accepted", "cancelled", "lost"]


class JoinNodeAnswerJoinedPolicy(TypedDict):
    # Incremented by each change of the other fields.
    change: int
    # Weight version of tokens that are sampled from now on; null: not set.
    version: int | None
    # Gateways hold new model calls.
    paused: bool
    # Mode of the current or latest pause.
    mode: Literal["drain", "hold"]


class JoinNodeAnswerTaken(TypedDict):
    kind: Literal["taken"]
    # Boot id of the process that holds the node id.
    boot_id: str


class LeaseSessionsBody(TypedDict):
    free_slots: int
    # How many of the free slots would only prefetch; nodes with idle slots are served first.
    ahead: NotRequired[int]
    # Absent: the labels of the join request.
    labels: NotRequired[list[str]]
    # Images and workspaces that are cached on the node: a preference, not a requirement.
    affinity: NotRequired[list[str]]
    holding: NotRequired[list[JoinNodeBodyHolding]]
    # Long poll: seconds to wait for a change before responding.
    wait: NotRequired[float]
    # The boot id of the join request. Absent: not checked.
    boot_id: NotRequired[str]


class LeaseSessionsAnswer(TypedDict):
    orders: list[LeaseSessionsAnswerOrder]
    draining: bool


class LeaseSessionsAnswerOrder(TypedDict):
    order: SessionOrder
    lease_ms: int


class SessionOrder(TypedDict):
    schemaVersion: Literal[1]
    sessionId: str
    attempt: int
    task: TaskRequest
    runId: NotRequired[str]


class TaskRequest(TypedDict):
    task_id: str
    instruction: str
    num_samples: int
    timeout_seconds: float
    runtime: NotRequired[RuntimeSpec | None]
    agent: AgentSpec
    builder: TaskRequestBuilder
    evaluator: NotRequired[EvaluatorSpec | None]
    callback_url: NotRequired[str | None]
    dispatch_priority: int
    early_stop_min_usable_sessions: NotRequired[int | None]
    budgets: NotRequired[SubmitRequestBudgets | None]
    sampling: NotRequired[SubmitRequestSampling | None]
    training: NotRequired[SubmitRequestTraining | None]
    metadata: dict[str, Any]


class RuntimeSpec(TypedDict):
    backend: NotRequired[str | None]
    image: NotRequired[str | None]
    prepare: list[RuntimeSpecInputPrepareUploadFile | RuntimeSpecInputPrepareUploadDir | RuntimeSpecInputPrepareCheckout | RuntimeSpecPrepareExec]
    eval_prepare: NotRequired[list[RuntimeSpecInputPrepareUploadFile | RuntimeSpecInputPrepareUploadDir | RuntimeSpecInputPrepareCheckout | RuntimeSpecPrepareExec] | None]
    env: dict[str, str]
    network: NotRequired[str | None]
    workdir: NotRequired[str | None]
    cpus: NotRequired[float | None]
    memory_mb: NotRequired[int | None]
    storage_mb: NotRequired[int | None]
    pids: NotRequired[int | None]
    gpus: int
    allow_internet: NotRequired[bool | None]
    allow_hosts: NotRequired[list[str] | None]
    import_path: NotRequired[str | None]
    kwargs: dict[str, Any]
    internet_volumes: NotRequired[list[str] | None]
    direct_exec_init_command: NotRequired[str | None]


class RuntimeSpecPrepareExec(TypedDict):
    type: Literal["exec"]
    command: str
    cwd: NotRequired[str | None]
    env: NotRequired[dict[str, str] | None]
    max_attempts: int
    retry_backoff_seconds: float
    source: NotRequired[None]
    target: NotRequired[None]


class AgentSpec(TypedDict):
    harness: NotRequired[str | None]
    import_path: NotRequired[str | None]
    model_name: NotRequired[str | None]
    settings: dict[str, Any]
    env: dict[str, str]
    mcp_servers: list[AgentSpecMcpServer]
    skills_path: NotRequired[str | None]
    custom_shell: NotRequired[AgentSpecInputCustomShell | None]


class AgentSpecMcpServer(TypedDict):
    name: str
    transport: Literal["stdio", "sse", "streamable-http"]
    command: NotRequired[str | None]
    args: list[str]
    url: NotRequired[str | None]


class TaskRequestBuilder(TypedDict):
    strategy: str
    config: dict[str, Any]


class EvaluatorSpec(TypedDict):
    strategy: str
    config: dict[str, Any]
    env: dict[str, str]
    refresh_runtime: bool


class RenewLeasesBody(TypedDict):
    renewals: list[RenewLeasesBodyRenewal]
    metrics: NotRequired[NodeStageMetricsInput]
    # The boot id of the join request. Absent: not checked.
    boot_id: NotRequired[str]


class RenewLeasesBodyRenewal(TypedDict):
    session_id: str
    # Fencing token: incremented for each new lease of the session.
    attempt: int
    status: NotRequired[SessionStatus]
    progress: NotRequired[RenewLeasesBodyRenewalProgress]


class RenewLeasesBodyRenewalProgress(TypedDict):
    calls: int
    tokens: int
    # Oldest policy version that sampled a token of the session.
    oldest_version: NotRequired[int]


class RenewLeasesAnswer(TypedDict):
    outcomes: list[JoinNodeAnswerJoinedOutcome]
    draining: bool


class CompleteSessionBody(TypedDict):
    outcome: SessionOutcome
    # The compressed result in base64, up to `max_inline_bytes` of the join response.
    result: NotRequired[str]
    # The upload that holds the result. Neither field: the attempt has no result.
    result_upload_id: NotRequired[str]
    artifacts: NotRequired[list[CompleteSessionBodyArtifact]]


class SessionOutcome(TypedDict):
    schemaVersion: Literal[1]
    sessionId: str
    taskId: str
    runId: NotRequired[str]
    attempt: int
    nodeId: str
    status: SessionStatus
    failure: NotRequired[Failure]
    ending: NotRequired[SessionOutcomeEnding]
    grade: NotRequired[SessionOutcomeGrade]
    counts: NotRequired[SessionOutcomeCounts]
    timing: SessionTiming
    warnings: NotRequired[list[str]]
    artifacts: list[SessionOutcomeArtifact]
    endedAt: float


class SessionOutcomeEnding(TypedDict):
    kind: Literal["completed", "failed", "timeout", "truncated"]
    exitCode: int | None


class SessionOutcomeGrade(TypedDict):
    outcome_reward: NotRequired[float | None]
    trace_rewards: NotRequired[list[float | None] | None]
    components: NotRequired[dict[str, float] | None]
    metadata: NotRequired[dict[str, Any]]


class SessionOutcomeCounts(TypedDict):
    builder: str
    turns: int
    calls: int
    rows: int
    trainedCalls: int
    tokens: SessionOutcomeCountsTokens
    excludedCalls: NotRequired[dict[str, int]]
    oldestVersion: NotRequired[int]


class SessionOutcomeCountsTokens(TypedDict):
    sampled: int
    trained: int
    excluded: int


class SessionOutcomeArtifact(TypedDict):
    path: str
    bytes: int
    isCut: bool


class CompleteSessionBodyArtifact(TypedDict):
    path: str
    # Returned by the server when the upload begins.
    upload_id: str


class CompleteSessionAnswer(TypedDict):
    kind: Literal["accepted", "duplicate"]
    is_refilled: NotRequired[bool]
    task_status: NotRequired[TaskState]


class ReleaseLeasesBody(TypedDict):
    leases: list[JoinNodeBodyHolding]
    # The boot id of the join request. Absent: not checked.
    boot_id: NotRequired[str]


class ReleaseLeasesAnswer(TypedDict):
    released: list[JoinNodeBodyHolding]


class LeaveNodeAnswer(TypedDict):
    # 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
    node_id: str
    requeued_sessions: int


class BeginUploadBody(TypedDict):
    session_id: str
    # Fencing token: incremented for each new lease of the session.
    attempt: int
    bytes: int
    # Digest of the stored bytes.
    digest: str


class BeginUploadAnswer(TypedDict):
    # Returned by the server when the upload begins.
    upload_id: str
    offset: int
    bytes: int
    # Digest of the stored bytes.
    digest: str
    is_complete: bool


class GetPolicyAnswer(TypedDict):
    # Incremented by each change of the other fields.
    change: int
    # 0 until a trainer sets a version.
    version: int
    # Gateways hold new model calls.
    paused: bool
    # Mode of the current or latest pause.
    mode: Literal["drain", "hold"]
    nodes: list[GetPolicyAnswerNode]


class GetPolicyAnswerNode(TypedDict):
    # 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
    node_id: str
    # The latest change that the node applied; null: none since the node joined.
    change: int | None
    # The version that the node stamps tokens with.
    version: int | None
    # Model calls in flight when the node last reported.
    in_flight: int
    # The node applied the current state, and in a `drain` pause has no call in flight.
    confirmed: bool
    # The lease of the node is over. No request waits for the node, and results of its sessions are refused.
    lost: bool


class PutPolicyBody(TypedDict):
    version: int
    resume: NotRequired[bool]
    # How long to wait until all nodes have confirmed. Longer than a lease: a node that died is then skipped.
    timeout_seconds: NotRequired[float]


class PutPolicyAnswer(TypedDict):
    # Incremented by each change of the other fields.
    change: int
    # 0 until a trainer sets a version.
    version: int
    # Gateways hold new model calls.
    paused: bool
    # Mode of the current or latest pause.
    mode: Literal["drain", "hold"]
    nodes: list[GetPolicyAnswerNode]
    warnings: NotRequired[list[str]]


class PausePolicyBody(TypedDict):
    mode: NotRequired[Literal["drain", "hold"]]
    # How long to wait until all nodes have confirmed. Longer than a lease: a node that died is then skipped.
    timeout_seconds: NotRequired[float]


class PollPolicyBody(TypedDict):
    boot_id: str
    # The change that the gateway has applied.
    change: int
    # The version that the gateway stamps tokens with.
    version: int | None
    # Model calls in flight.
    in_flight: int
    # Long poll: seconds to wait for a change before responding.
    wait: NotRequired[float]


class GetHealthAnswer(TypedDict):
    status: Literal["ok"]
    nodes: int


class GetStatusAnswer(TypedDict):
    tasks: dict[str, TaskState]
    pipeline: GetStatusAnswerPipeline
    nodes: GetStatusAnswerNodes


class GetStatusAnswerPipeline(TypedDict):
    pending_sessions: int
    running_sessions: int


class GetStatusAnswerNodes(TypedDict):
    nodes: list[NodeInfo]


class StreamEventsAnswer(TypedDict):
    # Such as `hello`, `ping`, `task.created`, `task.updated`, `task.completed`, `task.deleted`,
    # `session.state_changed`.
    type: str
    # Unix seconds.
    ts: float
    data: dict[str, Any]


class ListQuotasAnswer(TypedDict):
    quotas: list[ListQuotasAnswerQuota]


class ListQuotasAnswerQuota(TypedDict):
    max_queued_sessions: int | None
    max_running_sessions: int | None
    token: str
    queued_sessions: int
    running_sessions: int


class PutQuotaBody(TypedDict):
    max_queued_sessions: int | None
    max_running_sessions: int | None


class ListCallbacksAnswer(TypedDict):
    callbacks: list[ListCallbacksAnswerCallback]
    next_cursor: NotRequired[str]


class ListCallbacksAnswerCallback(TypedDict):
    callback_id: int
    task_id: str
    url: str
    state: Literal["waiting", "delivered", "dead"]
    tries: int
    next_at: float | None
    last_error: str | None
