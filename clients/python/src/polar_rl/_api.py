# Written by `npm run docs` from the route table in src/api. Do not edit.
"""One method for each route of the Polar rollout server."""

from __future__ import annotations

from typing import Any, Generator, Literal

from ._transport import Event, Route, Transport
from .types import (
    BeginUploadAnswer,
    BeginUploadBody,
    CancelSessionAnswer,
    CompleteSessionAnswer,
    CompleteSessionBody,
    DeleteTaskAnswer,
    FailureCode,
    GetHealthAnswer,
    GetPolicyAnswer,
    GetSessionAnswer,
    GetStatusAnswer,
    HeartbeatNodeBody,
    JoinNodeAnswerJoined,
    JoinNodeAnswerJoinedPolicy,
    JoinNodeAnswerTaken,
    JoinNodeBody,
    LeaseSessionsAnswer,
    LeaseSessionsBody,
    LeaveNodeAnswer,
    ListArtifactsAnswer,
    ListCallbacksAnswer,
    ListCallbacksAnswerCallback,
    ListQuotasAnswer,
    ListQuotasAnswerQuota,
    ListSessionsAnswer,
    ListTaskResultsAnswer,
    ListTaskSessionsAnswer,
    ListTasksAnswer,
    NodeInfo,
    PausePolicyBody,
    PollPolicyBody,
    PostSessionResultAnswer,
    PostSessionResultBody,
    PutPolicyAnswer,
    PutPolicyBody,
    PutQuotaBody,
    RegisterNodeBody,
    ReleaseLeasesAnswer,
    ReleaseLeasesBody,
    RenewLeasesAnswer,
    RenewLeasesBody,
    RetryTaskAnswer,
    RetryTaskBody,
    SessionResult,
    SessionStatus,
    SessionSummary,
    StreamEventsAnswer,
    SubmitBatchAnswer,
    SubmitBatchBody,
    SubmitRequest,
    SubmitTaskAnswer,
    TaskState,
    TaskStatus,
    TaskSummary,
    UpdateTaskBody,
)

_SUBMIT_TASK = Route("POST", "/rollout/task/submit", is_idempotent=True, takes_key=True, is_strict=True)
_SUBMIT_BATCH = Route("POST", "/tasks/batch", is_idempotent=True, takes_key=True)
_GET_TASK = Route("GET", "/rollout/task/{task_id}", is_idempotent=True)
_CANCEL_TASK = Route("DELETE", "/rollout/task/{task_id}", is_idempotent=True)
_UPDATE_TASK = Route("PATCH", "/tasks/{task_id}", is_idempotent=True)
_DELETE_TASK = Route("DELETE", "/tasks/{task_id}", is_idempotent=True)
_RETRY_TASK = Route("POST", "/tasks/{task_id}/retry", is_idempotent=True)
_LIST_TASKS = Route("GET", "/tasks", is_idempotent=True)
_LIST_TASK_SESSIONS = Route("GET", "/tasks/{task_id}/sessions", is_idempotent=True)
_STREAM_TASK_RESULTS = Route("GET", "/tasks/{task_id}/results", is_idempotent=True, resume_by="skip")
_LIST_TASK_RESULTS = Route("GET", "/tasks/{task_id}/results/references", is_idempotent=True)
_LIST_SESSIONS = Route("GET", "/sessions", is_idempotent=True)
_GET_SESSION = Route("GET", "/sessions/{session_id}", is_idempotent=True)
_CANCEL_SESSION = Route("DELETE", "/sessions/{session_id}", is_idempotent=True)
_RETRY_SESSION = Route("POST", "/sessions/{session_id}/retry", is_idempotent=False)
_GET_SESSION_RESULT = Route("GET", "/sessions/{session_id}/result", is_idempotent=True)
_LIST_ARTIFACTS = Route("GET", "/sessions/{session_id}/artifacts", is_idempotent=True)
_GET_ARTIFACT = Route("GET", "/sessions/{session_id}/artifact", is_idempotent=True)
_REGISTER_NODE = Route("POST", "/nodes/register", is_idempotent=True)
_HEARTBEAT_NODE = Route("POST", "/nodes/{node_id}/heartbeat", is_idempotent=True)
_LIST_NODES = Route("GET", "/nodes", is_idempotent=True)
_GET_NODE = Route("GET", "/nodes/{node_id}", is_idempotent=True)
_REMOVE_NODE = Route("DELETE", "/nodes/{node_id}", is_idempotent=True)
_POST_SESSION_RESULT = Route("POST", "/callbacks/session_result", is_idempotent=True)
_JOIN_NODE = Route("POST", "/nodes/{node_id}/join", is_idempotent=True)
_LEASE_SESSIONS = Route("POST", "/nodes/{node_id}/lease", is_idempotent=True)
_RENEW_LEASES = Route("POST", "/nodes/{node_id}/renew", is_idempotent=True)
_COMPLETE_SESSION = Route("POST", "/nodes/{node_id}/complete", is_idempotent=True)
_RELEASE_LEASES = Route("POST", "/nodes/{node_id}/release", is_idempotent=True)
_DRAIN_NODE = Route("POST", "/nodes/{node_id}/drain", is_idempotent=True)
_LEAVE_NODE = Route("POST", "/nodes/{node_id}/leave", is_idempotent=True)
_BEGIN_UPLOAD = Route("POST", "/nodes/{node_id}/uploads", is_idempotent=True)
_GET_UPLOAD = Route("GET", "/nodes/{node_id}/uploads/{upload_id}", is_idempotent=True)
_PUT_PART = Route("PUT", "/nodes/{node_id}/uploads/{upload_id}", is_idempotent=True)
_GET_POLICY = Route("GET", "/policy", is_idempotent=True)
_PUT_POLICY = Route("PUT", "/policy", is_idempotent=True)
_PAUSE_POLICY = Route("POST", "/policy/pause", is_idempotent=True)
_RESUME_POLICY = Route("POST", "/policy/resume", is_idempotent=True)
_POLL_POLICY = Route("POST", "/nodes/{node_id}/policy", is_idempotent=True)
_GET_HEALTH = Route("GET", "/health", is_idempotent=True)
_GET_OPEN_API = Route("GET", "/openapi.json", is_idempotent=True)
_GET_STATUS = Route("GET", "/rollout/status", is_idempotent=True)
_STREAM_EVENTS = Route("GET", "/events", is_idempotent=True)
_LIST_QUOTAS = Route("GET", "/quotas", is_idempotent=True)
_PUT_QUOTA = Route("PUT", "/quotas/{token}", is_idempotent=True)
_LIST_CALLBACKS = Route("GET", "/callbacks", is_idempotent=True)
_RESEND_CALLBACK = Route("POST", "/callbacks/{callback_id}/resend", is_idempotent=True)


class Api:
    """One method for each route. Every method raises `PolarError` with the failure code of the server."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def submit_task(
        self,
        body: SubmitRequest,
        *,
        unrunnable: Literal["refuse", "queue"] | None = None,
        idempotency_key: str | None = None,
    ) -> SubmitTaskAnswer:
        """Submit a task: one instruction, `num_samples` sessions.

        Responds once the task is stored. While a task with this id runs, the same body returns that task, and a
        different body is refused (409). After the task has ended, a submit starts a new run under the id, and the
        older run is renamed to `<task_id>~<run>`. 409 also: the id was cancelled before it was submitted, or the
        policy version of the task is too old. 429: the queue limit of the token is reached. 503: no registered node
        can run the task. Unknown fields, null, and numbers and booleans as text are accepted with `warnings`; with
        the header `X-Polar-Strict: true` they are refused.

        Idempotency: With an `Idempotency-Key`, a repeated request returns the same task, also after it has ended;
        without, only while it runs.

        `unrunnable`: How to handle a task whose required labels no registered node has: `queue` waits for such a
        node. While no node is registered, tasks are always queued.
        """
        answer: SubmitTaskAnswer = self._transport.json(
            _SUBMIT_TASK,
            params={},
            query={"unrunnable": unrunnable},
            body=body,
            idempotency_key=idempotency_key,
        )
        return answer

    def submit_batch(
        self,
        body: SubmitBatchBody,
        *,
        unrunnable: Literal["refuse", "queue"] | None = None,
        idempotency_key: str | None = None,
    ) -> SubmitBatchAnswer:
        """Submit many tasks.

        All tasks are stored in one transaction; `outcomes` are in the order of `tasks`.

        Idempotency: As for `submitTask`, for each task.

        `unrunnable`: How to handle a task whose required labels no registered node has: `queue` waits for such a
        node. While no node is registered, tasks are always queued.
        """
        answer: SubmitBatchAnswer = self._transport.json(
            _SUBMIT_BATCH,
            params={},
            query={"unrunnable": unrunnable},
            body=body,
            idempotency_key=idempotency_key,
        )
        return answer

    def get_task(
        self,
        task_id: str,
        *,
        wait: float | None = None,
        known_completed: int | None = None,
        results: Literal["inline", "reference"] | None = None,
    ) -> TaskStatus:
        """Get the progress of a task and the results of its ended sessions.

        `wait`: Long poll: seconds to wait for a change before responding.
        `known_completed`: With `wait`: respond when more sessions than this have ended. Absent: when the task has
        ended.
        `results`: `reference`: `results` is empty, and `result_paths` lists the files.
        """
        answer: TaskStatus = self._transport.json(
            _GET_TASK,
            params={"task_id": task_id},
            query={"wait": wait, "known_completed": known_completed, "results": results},
        )
        return answer

    def cancel_task(
        self,
        task_id: str,
        *,
        register_if_missing: bool | None = None,
    ) -> TaskStatus:
        """Cancel a task and its sessions.

        `register_if_missing`: Reserve an id that does not exist, so that a later submit is refused (409).
        """
        answer: TaskStatus = self._transport.json(
            _CANCEL_TASK,
            params={"task_id": task_id},
            query={"register_if_missing": register_if_missing},
        )
        return answer

    def update_task(
        self,
        task_id: str,
        body: UpdateTaskBody | None = None,
    ) -> TaskSummary:
        """Change the priority or early stop of a running task."""
        answer: TaskSummary = self._transport.json(
            _UPDATE_TASK,
            params={"task_id": task_id},
            query={},
            body=body,
        )
        return answer

    def delete_task(
        self,
        task_id: str,
    ) -> DeleteTaskAnswer:
        """Delete an ended task with its sessions, results and artifacts.

        The deletion is final and drops pending callbacks. 409: the task is running; cancel it first. The id stays
        reserved for a day: a repeat of the submit that created the task, with its `Idempotency-Key`, is refused
        (409).

        Idempotency: A second request returns 404.
        """
        answer: DeleteTaskAnswer = self._transport.json(
            _DELETE_TASK,
            params={"task_id": task_id},
            query={},
        )
        return answer

    def retry_task(
        self,
        task_id: str,
        body: RetryTaskBody | None = None,
    ) -> RetryTaskAnswer:
        """Retry the sessions of a task whose end was not caused by the agent.

        Idempotency: A requeued session no longer has one of these statuses.
        """
        answer: RetryTaskAnswer = self._transport.json(
            _RETRY_TASK,
            params={"task_id": task_id},
            query={},
            body=body,
        )
        return answer

    def list_tasks(
        self,
        *,
        status: TaskState | None = None,
        harness: str | None = None,
        model: str | None = None,
        search: str | None = None,
        since: float | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> ListTasksAnswer:
        """List tasks, last change first.

        `search`: Substring of the task id.
        `since`: Unix seconds: only tasks that changed since.
        """
        answer: ListTasksAnswer = self._transport.json(
            _LIST_TASKS,
            params={},
            query={"status": status, "harness": harness, "model": model, "search": search, "since": since, "limit": limit, "cursor": cursor},
        )
        return answer

    def list_task_sessions(
        self,
        task_id: str,
        *,
        status: SessionStatus | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> ListTaskSessionsAnswer:
        """List the sessions of a task, in order of sample."""
        answer: ListTaskSessionsAnswer = self._transport.json(
            _LIST_TASK_SESSIONS,
            params={"task_id": task_id},
            query={"status": status, "limit": limit, "cursor": cursor},
        )
        return answer

    def stream_task_results(
        self,
        task_id: str,
        *,
        skip: int | None = None,
        follow: bool | None = None,
    ) -> Generator[SessionResult, None, None]:
        """Stream the results of a task, one per line, in the order of acceptance.

        Compressed with zstd or gzip according to `Accept-Encoding`. The position of a result never changes: `skip`
        the lines that were already received. A retried session has one line for each end; the last one counts.

        `skip`: Number of lines to skip.
        `follow`: Continue until the task has ended.
        """
        answer: Generator[SessionResult, None, None] = self._transport.lines(
            _STREAM_TASK_RESULTS,
            params={"task_id": task_id},
            query={"skip": skip, "follow": follow},
        )
        return answer

    def list_task_results(
        self,
        task_id: str,
        *,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> ListTaskResultsAnswer:
        """List the result files of a task."""
        answer: ListTaskResultsAnswer = self._transport.json(
            _LIST_TASK_RESULTS,
            params={"task_id": task_id},
            query={"limit": limit, "cursor": cursor},
        )
        return answer

    def list_sessions(
        self,
        *,
        status: list[SessionStatus] | None = None,
        task_id: str | None = None,
        node_id: str | None = None,
        harness: str | None = None,
        failure: FailureCode | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> ListSessionsAnswer:
        """List sessions of all tasks, newest first.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        """
        answer: ListSessionsAnswer = self._transport.json(
            _LIST_SESSIONS,
            params={},
            query={"status": status, "task_id": task_id, "node_id": node_id, "harness": harness, "failure": failure, "limit": limit, "cursor": cursor},
        )
        return answer

    def get_session(
        self,
        session_id: str,
    ) -> GetSessionAnswer:
        """Get a session with all its attempts."""
        answer: GetSessionAnswer = self._transport.json(
            _GET_SESSION,
            params={"session_id": session_id},
            query={},
        )
        return answer

    def cancel_session(
        self,
        session_id: str,
    ) -> CancelSessionAnswer:
        """Cancel a session; its result is refused."""
        answer: CancelSessionAnswer = self._transport.json(
            _CANCEL_SESSION,
            params={"session_id": session_id},
            query={},
        )
        return answer

    def retry_session(
        self,
        session_id: str,
    ) -> SessionSummary:
        """Retry a session whose end was not caused by the agent.

        409: the session has not ended, or its result is final.

        Idempotency: A second request finds the session queued and is refused with 409; read the session to check.
        """
        answer: SessionSummary = self._transport.json(
            _RETRY_SESSION,
            params={"session_id": session_id},
            query={},
        )
        return answer

    def get_session_result(
        self,
        session_id: str,
    ) -> SessionResult:
        """Get the result of an ended session.

        Compressed with zstd or gzip according to `Accept-Encoding`. 409: the session has not ended.
        """
        answer: SessionResult = self._transport.json(
            _GET_SESSION_RESULT,
            params={"session_id": session_id},
            query={},
        )
        return answer

    def list_artifacts(
        self,
        session_id: str,
    ) -> ListArtifactsAnswer:
        """List the stored files of a session: logs of harness and grader, and artifacts of the task."""
        answer: ListArtifactsAnswer = self._transport.json(
            _LIST_ARTIFACTS,
            params={"session_id": session_id},
            query={},
        )
        return answer

    def get_artifact(
        self,
        session_id: str,
        *,
        path: str,
        offset: int | None = None,
        length: int | None = None,
    ) -> Generator[bytes, None, None]:
        """Get one file of a session.

        `offset`: Number of bytes to skip.
        `length`: Maximum number of bytes; absent: to the end.
        """
        answer: Generator[bytes, None, None] = self._transport.chunks(
            _GET_ARTIFACT,
            params={"session_id": session_id},
            query={"path": path, "offset": offset, "length": length},
        )
        return answer

    def register_node(
        self,
        body: RegisterNodeBody,
    ) -> NodeInfo:
        """Register a node.

        Idempotency: A repeated registration replaces the previous one.
        """
        answer: NodeInfo = self._transport.json(
            _REGISTER_NODE,
            params={},
            query={},
            body=body,
        )
        return answer

    def heartbeat_node(
        self,
        node_id: str,
        body: HeartbeatNodeBody | None = None,
    ) -> NodeInfo:
        """Send a heartbeat with the load of the node. 404: the node must register again.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        """
        answer: NodeInfo = self._transport.json(
            _HEARTBEAT_NODE,
            params={"node_id": node_id},
            query={},
            body=body,
        )
        return answer

    def list_nodes(
        self,
    ) -> list[NodeInfo]:
        """List all nodes."""
        answer: list[NodeInfo] = self._transport.json(
            _LIST_NODES,
            params={},
            query={},
        )
        return answer

    def get_node(
        self,
        node_id: str,
    ) -> NodeInfo:
        """Get a node.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        """
        answer: NodeInfo = self._transport.json(
            _GET_NODE,
            params={"node_id": node_id},
            query={},
        )
        return answer

    def remove_node(
        self,
        node_id: str,
    ) -> NodeInfo:
        """Drain a node and remove it once it holds no leases.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        """
        answer: NodeInfo = self._transport.json(
            _REMOVE_NODE,
            params={"node_id": node_id},
            query={},
        )
        return answer

    def post_session_result(
        self,
        body: PostSessionResultBody,
    ) -> PostSessionResultAnswer:
        """Post the result of a session in one request.

        Once accepted, the result is durable. 404: the session does not exist. 409: the session has ended, or
        another node has leased it. In both cases a retry has the same outcome.

        Idempotency: The same result again is accepted, and stored once.
        """
        answer: PostSessionResultAnswer = self._transport.json(
            _POST_SESSION_RESULT,
            params={},
            query={},
            body=body,
        )
        return answer

    def join_node(
        self,
        node_id: str,
        body: JoinNodeBody,
    ) -> JoinNodeAnswerJoined | JoinNodeAnswerTaken:
        """Register a node that leases sessions.

        A restarted node names its previous process in `replaces`. Without it the response is `taken` with the boot
        id of that process, and nothing changes: so a delayed join request from a dead process cannot evict its
        successor. A process that had joined before and gets `taken` was replaced and must stop.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        """
        answer: JoinNodeAnswerJoined | JoinNodeAnswerTaken = self._transport.json(
            _JOIN_NODE,
            params={"node_id": node_id},
            query={},
            body=body,
        )
        return answer

    def lease_sessions(
        self,
        node_id: str,
        body: LeaseSessionsBody,
    ) -> LeaseSessionsAnswer:
        """Lease sessions for free slots; with `wait`, long-poll until some are available.

        A node sends one lease request at a time. `holding` lists all attempts of the node: leases that are not
        listed and were never renewed did not reach the node, and are requeued at once. 404: the node must join. 409
        `request.stale`: another process has joined under this node id.

        Idempotency: With `holding`: the next request requeues leases whose response was lost.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        """
        answer: LeaseSessionsAnswer = self._transport.json(
            _LEASE_SESSIONS,
            params={"node_id": node_id},
            query={},
            body=body,
        )
        return answer

    def renew_leases(
        self,
        node_id: str,
        body: RenewLeasesBody,
    ) -> RenewLeasesAnswer:
        """Renew leases and report each session’s status.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        """
        answer: RenewLeasesAnswer = self._transport.json(
            _RENEW_LEASES,
            params={"node_id": node_id},
            query={},
            body=body,
        )
        return answer

    def complete_session(
        self,
        node_id: str,
        body: CompleteSessionBody,
    ) -> CompleteSessionAnswer:
        """Complete a session: its outcome, its result (inline or uploaded) and its artifacts.

        Once accepted, the result is durable, and the node may delete its copy. 409 `request.stale`: the attempt was
        cancelled, or another node has leased the session. 404: the session does not exist. In both cases a retry
        has the same outcome.

        Idempotency: The same result again, inline or uploaded, returns `duplicate`.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        """
        answer: CompleteSessionAnswer = self._transport.json(
            _COMPLETE_SESSION,
            params={"node_id": node_id},
            query={},
            body=body,
        )
        return answer

    def release_leases(
        self,
        node_id: str,
        body: ReleaseLeasesBody,
    ) -> ReleaseLeasesAnswer:
        """Release leases that the node will not run; not counted as a failure.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        """
        answer: ReleaseLeasesAnswer = self._transport.json(
            _RELEASE_LEASES,
            params={"node_id": node_id},
            query={},
            body=body,
        )
        return answer

    def drain_node(
        self,
        node_id: str,
    ) -> NodeInfo:
        """Drain a node: it gets no new leases, finishes its sessions and leaves.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        """
        answer: NodeInfo = self._transport.json(
            _DRAIN_NODE,
            params={"node_id": node_id},
            query={},
        )
        return answer

    def leave_node(
        self,
        node_id: str,
        *,
        boot_id: str | None = None,
    ) -> LeaveNodeAnswer:
        """Remove a node and requeue its sessions at once.

        Idempotency: Has no effect if the node does not exist.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        `boot_id`: The boot id of the join request. Absent: not checked.
        """
        answer: LeaveNodeAnswer = self._transport.json(
            _LEAVE_NODE,
            params={"node_id": node_id},
            query={"boot_id": boot_id},
        )
        return answer

    def begin_upload(
        self,
        node_id: str,
        body: BeginUploadBody,
    ) -> BeginUploadAnswer:
        """Begin an upload, or get its offset.

        409 `request.stale`: the node no longer holds the attempt, so uploads for it are refused.

        Idempotency: The same attempt and digest return the same upload.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        """
        answer: BeginUploadAnswer = self._transport.json(
            _BEGIN_UPLOAD,
            params={"node_id": node_id},
            query={},
            body=body,
        )
        return answer

    def get_upload(
        self,
        node_id: str,
        upload_id: str,
    ) -> BeginUploadAnswer:
        """Get the offset of an upload.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        `upload_id`: Returned by the server when the upload begins.
        """
        answer: BeginUploadAnswer = self._transport.json(
            _GET_UPLOAD,
            params={"node_id": node_id, "upload_id": upload_id},
            query={},
        )
        return answer

    def put_part(
        self,
        node_id: str,
        upload_id: str,
        body: bytes,
        *,
        offset: int,
        digest: str | None = None,
    ) -> BeginUploadAnswer:
        """Upload the next part.

        The part is durable once the response is sent. 409 `request.conflict`: the part does not start at the offset
        of the upload, or the complete file does not match its digest, which resets the upload; get the offset and
        continue from it.

        Idempotency: A part that is already stored is accepted and has no effect.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        `upload_id`: Returned by the server when the upload begins.
        `digest`: Digest of this part; a part that does not match is refused with 422.
        """
        answer: BeginUploadAnswer = self._transport.json(
            _PUT_PART,
            params={"node_id": node_id, "upload_id": upload_id},
            query={"offset": offset, "digest": digest},
            body=body,
        )
        return answer

    def get_policy(
        self,
    ) -> GetPolicyAnswer:
        """Get the policy version, the pause, and what each node has confirmed."""
        answer: GetPolicyAnswer = self._transport.json(
            _GET_POLICY,
            params={},
            query={},
        )
        return answer

    def put_policy(
        self,
        body: PutPolicyBody,
    ) -> PutPolicyAnswer:
        """Set the version that all gateways stamp tokens with; cancels stale tasks.

        The version never decreases: an older one has no effect, and the response holds the current version. With
        `resume` a pause ends with the same change: no gateway sends a call before it has the version. Waits until
        every node has confirmed. 504 `server.unconfirmed` names the nodes that have not when the time is over; the
        change stays, and the same request can be sent again to wait longer. A node whose lease is over is not
        waited for: results of its sessions are refused, and it applies the current state before it leases sessions
        again.
        """
        answer: PutPolicyAnswer = self._transport.json(
            _PUT_POLICY,
            params={},
            query={},
            body=body,
        )
        return answer

    def pause_policy(
        self,
        body: PausePolicyBody | None = None,
    ) -> GetPolicyAnswer:
        """Pause all gateways: they hold new model calls, which do not fail.

        `drain`: also waits until no call is in flight. `hold`: calls in flight continue in the engine, which the
        trainer pauses itself. The pause ends by request only, and survives restarts of servers and nodes. Waits
        until every node has confirmed. 504 `server.unconfirmed` names the nodes that have not when the time is
        over; the change stays, and the same request can be sent again to wait longer. A node whose lease is over is
        not waited for: results of its sessions are refused, and it applies the current state before it leases
        sessions again. 409: another request ended the pause meanwhile.
        """
        answer: GetPolicyAnswer = self._transport.json(
            _PAUSE_POLICY,
            params={},
            query={},
            body=body,
        )
        return answer

    def resume_policy(
        self,
        *,
        timeout_seconds: float | None = None,
    ) -> GetPolicyAnswer:
        """End the pause: all gateways send the held calls.

        Waits until every node has confirmed. 504 `server.unconfirmed` names the nodes that have not when the time
        is over; the change stays, and the same request can be sent again to wait longer. A node whose lease is over
        is not waited for: results of its sessions are refused, and it applies the current state before it leases
        sessions again.

        `timeout_seconds`: How long to wait until all nodes have confirmed. Longer than a lease: a node that died is
        then skipped.
        """
        answer: GetPolicyAnswer = self._transport.json(
            _RESUME_POLICY,
            params={},
            query={"timeout_seconds": timeout_seconds},
        )
        return answer

    def poll_policy(
        self,
        node_id: str,
        body: PollPolicyBody,
    ) -> JoinNodeAnswerJoinedPolicy:
        """Confirm the applied policy state; with `wait`, long-poll until it changes.

        404: the node must join. 409 `request.stale`: another process has joined under this node id.

        `node_id`: 1-128 letters, digits, "_", "." or "-"; starts with a letter or digit.
        """
        answer: JoinNodeAnswerJoinedPolicy = self._transport.json(
            _POLL_POLICY,
            params={"node_id": node_id},
            query={},
            body=body,
        )
        return answer

    def get_health(
        self,
    ) -> GetHealthAnswer:
        """Check that the server and its database respond; returns the number of nodes."""
        answer: GetHealthAnswer = self._transport.json(
            _GET_HEALTH,
            params={},
            query={},
        )
        return answer

    def get_open_api(
        self,
    ) -> dict[str, Any]:
        """Get this document."""
        answer: dict[str, Any] = self._transport.json(
            _GET_OPEN_API,
            params={},
            query={},
        )
        return answer

    def get_status(
        self,
    ) -> GetStatusAnswer:
        """Get running tasks, queue length and nodes."""
        answer: GetStatusAnswer = self._transport.json(
            _GET_STATUS,
            params={},
            query={},
        )
        return answer

    def stream_events(
        self,
        *,
        last_event_id: str | None = None,
        task_id: str | None = None,
    ) -> Generator[Event[StreamEventsAnswer], None, None]:
        """Stream events of tasks and sessions.

        The first event is `hello`; `ping` follows after 15 s without events. With `Last-Event-ID` (or
        `last_event_id`) the stream starts after that event, so a reader that reconnects misses nothing.

        `task_id`: Only events of this task.
        """
        answer: Generator[Event[StreamEventsAnswer], None, None] = self._transport.events(
            _STREAM_EVENTS,
            params={},
            query={"last_event_id": last_event_id, "task_id": task_id},
        )
        return answer

    def list_quotas(
        self,
    ) -> ListQuotasAnswer:
        """List quotas and their use by token."""
        answer: ListQuotasAnswer = self._transport.json(
            _LIST_QUOTAS,
            params={},
            query={},
        )
        return answer

    def put_quota(
        self,
        token: str,
        body: PutQuotaBody,
    ) -> ListQuotasAnswerQuota:
        """Set the quota of a token."""
        answer: ListQuotasAnswerQuota = self._transport.json(
            _PUT_QUOTA,
            params={"token": token},
            query={},
            body=body,
        )
        return answer

    def list_callbacks(
        self,
        *,
        state: Literal["waiting", "delivered", "dead"] | None = None,
        task_id: str | None = None,
        limit: int | None = None,
        cursor: str | None = None,
    ) -> ListCallbacksAnswer:
        """List callbacks by state, newest first."""
        answer: ListCallbacksAnswer = self._transport.json(
            _LIST_CALLBACKS,
            params={},
            query={"state": state, "task_id": task_id, "limit": limit, "cursor": cursor},
        )
        return answer

    def resend_callback(
        self,
        callback_id: int,
    ) -> ListCallbacksAnswerCallback:
        """Resend a dead callback, with no tries counted.

        Idempotency: Has no effect on a waiting or delivered callback.
        """
        answer: ListCallbacksAnswerCallback = self._transport.json(
            _RESEND_CALLBACK,
            params={"callback_id": callback_id},
            query={},
        )
        return answer
