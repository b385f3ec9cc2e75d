"""The client of a trainer."""

from __future__ import annotations

import json
import os
import ssl
import time
from contextlib import contextmanager
from pathlib import Path
from typing import Generator, Iterator, Literal, Optional, Sequence

from ._api import Api
from ._retries import Clock
from ._transport import Transport
from .errors import PolarError
from .types import SessionResult, SubmitRequest, TaskStatus

# The most seconds that one long poll waits.
_POLL_SECONDS = 30.0
_ENDED = frozenset(["COMPLETED", "ERROR", "TIMEOUT", "CANCELLED"])
# Failure code of a task that the server did not store.
_REFUSED = {"no-node": "request.no-node", "stale": "request.stale"}


class Client(Api):
    """Client of a Polar rollout server. Every method may be called by many threads.

    The server is `url`, else `POLAR_SERVER_URL`, else the `polar up` of the data folder `folder`. The token is `token`,
    else `POLAR_TOKEN`, else the contents of `POLAR_TOKEN_FILE`, else the trainer's token of the data folder, which is
    only sent to the server of that folder.

    A call without an answer, and a call that the server asks to repeat, is repeated for `retry_seconds` where that is
    safe. `timeout`: seconds without data after which a connection is dead. Certificates are verified; pass `ssl_context`
    to trust a private authority.
    """

    def __init__(
        self,
        url: Optional[str] = None,
        token: Optional[str] = None,
        *,
        folder: str = ".polar/up",
        timeout: float = 300.0,
        retry_seconds: float = 60.0,
        ssl_context: Optional[ssl.SSLContext] = None,
        clock: Optional[Clock] = None,
    ) -> None:
        own = _read_json(folder, "server.json").get("url")
        url = url or os.environ.get("POLAR_SERVER_URL") or own
        if not isinstance(url, str):
            hint = "start one with polar up, pass url=, or set POLAR_SERVER_URL"
            raise PolarError("server.unreachable", f"No server uses the folder {folder}; {hint}.")
        token = token or _token_of_environment()
        if token is None and url == own:
            token = _read_json(folder, "tokens.json").get("trainer")
        transport = Transport(
            url,
            token,
            timeout=timeout,
            retry_seconds=retry_seconds,
            ssl_context=ssl_context,
            clock=clock or Clock(),
        )
        super().__init__(transport)

    def submit(self, task: SubmitRequest, *, key: Optional[str] = None, queue: bool = False) -> str:
        """Submits a task and returns its id.

        `key`: calls with the same idempotency key are one call, also after the task has ended, so that a restarted
        trainer finds its task. Absent: a new key, the same for all tries of this call. `queue`: accept a task that no
        registered node can run yet.
        """
        return self.submit_task(task, unrunnable="queue" if queue else "refuse", idempotency_key=key)["task_id"]

    def submit_many(
        self, tasks: Sequence[SubmitRequest], *, key: Optional[str] = None, queue: bool = False
    ) -> list[str]:
        """Submits up to 1,000 tasks in one transaction and returns their ids. Raises if the server refuses a task."""
        answer = self.submit_batch(
            {"tasks": list(tasks)}, unrunnable="queue" if queue else "refuse", idempotency_key=key
        )
        refused = [each for each in answer["outcomes"] if each["outcome"] not in ("created", "same")]
        if refused:
            names = ", ".join(f"{each['task_id']}: {each['outcome']}" for each in refused[:10])
            message = f"The server refused {len(refused)} of {len(tasks)} tasks ({names})."
            raise PolarError(_REFUSED.get(refused[0]["outcome"], "request.conflict"), message)
        return [each["task_id"] for each in answer["outcomes"]]

    def wait(self, *task_ids: str, timeout: Optional[float] = None) -> list[TaskStatus]:
        """Waits until all tasks have ended. The answers hold no results; `results` has them.

        Raises `TimeoutError` after `timeout` seconds; the tasks continue.
        """
        end = None if timeout is None else time.monotonic() + timeout
        return [self._wait_for(task_id, end) for task_id in task_ids]

    def _wait_for(self, task_id: str, end: Optional[float]) -> TaskStatus:
        while True:
            left = _POLL_SECONDS if end is None else min(_POLL_SECONDS, max(0.0, end - time.monotonic()))
            task = self.get_task(task_id, wait=left, results="reference")
            if task["status"] not in ("running", "cancelling"):
                return task
            if end is not None and time.monotonic() >= end:
                done = f"{task['completed_sessions']} of {task['total_sessions']} sessions have ended"
                raise TimeoutError(f"Task {task_id} has not ended in time; {done}.")

    def results(self, *task_ids: str) -> Generator[SessionResult, None, None]:
        """Yields the results of all tasks as their sessions end, until all tasks have ended.

        No result is lost or repeated when the connection or the server fails meanwhile. A session that is retried by
        request has one result for each end; the last one counts.
        """
        positions = dict.fromkeys(task_ids, 0)
        if not positions:
            return
        for event in self.stream_events(task_id=task_ids[0] if len(positions) == 1 else None):
            due = self._due(event.data["type"], event.data["data"], positions)
            for task_id in due:
                # Read before the results: if the task has ended by then, the results read next are all.
                has_ended = event.data["type"] != "session.state_changed" and self._has_ended(task_id)
                for result in self.stream_task_results(task_id, skip=positions[task_id]):
                    positions[task_id] += 1
                    yield result
                if has_ended:
                    del positions[task_id]
            if not positions:
                return

    @staticmethod
    def _due(kind: str, data: dict[str, object], positions: dict[str, int]) -> list[str]:
        """Returns the tasks that may have new results after an event."""
        # The first event of each connection: events before it may be lost.
        if kind == "hello":
            return list(positions)
        task_id = data.get("task_id")
        if not isinstance(task_id, str) or task_id not in positions:
            return []
        is_end = kind in ("task.completed", "task.deleted") or data.get("status") in _ENDED
        return [task_id] if is_end else []

    def _has_ended(self, task_id: str) -> bool:
        return self.get_task(task_id, results="reference")["status"] not in ("running", "cancelling")

    def cancel(self, *task_ids: str) -> list[TaskStatus]:
        """Cancels tasks and their sessions. A task that has ended stays as it is."""
        return [self.cancel_task(task_id) for task_id in task_ids]

    def policy_version(self) -> int:
        """Returns the policy version that the engines serve."""
        return self.get_policy()["version"]

    def set_policy_version(self, version: int) -> int:
        """Sets the policy version and cancels stale tasks. Returns the current version, which never decreases."""
        return self.put_policy({"version": version})["version"]

    @contextmanager
    def updating_weights(self, version: int, mode: Literal["drain", "hold"] = "drain") -> Iterator[None]:
        """Pauses all gateways, runs the block that updates the engine, then sets `version` and resumes.

        No call fails meanwhile: new calls wait. `drain` waits until calls in flight have ended; `hold` lets them continue
        in the engine. After an exception in the block the gateways resume with the old version.
        """
        self.pause_policy({"mode": mode})
        try:
            yield
        except BaseException:
            self.resume_policy()
            raise
        self.put_policy({"version": version, "resume": True})


def _token_of_environment() -> Optional[str]:
    token = os.environ.get("POLAR_TOKEN")
    file = os.environ.get("POLAR_TOKEN_FILE")
    if token or not file:
        return token or None
    return Path(file).read_text(encoding="utf-8").strip()


def _read_json(folder: str, name: str) -> dict[str, str]:
    """Reads a file of the data folder. Empty if the file does not exist."""
    try:
        value = json.loads((Path(folder) / name).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return {}
    return value if isinstance(value, dict) else {}
