"""Nodes of Polar in a Ray cluster: `polar node` on the machines of a placement group, drained with the job."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType
from typing import Any, Optional, Sequence

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

SUPERVISE = str(Path(__file__).with_name("supervise.py").resolve())


@ray.remote(max_restarts=-1)
class PolarNode:
    """One node. Ray starts the actor again after a crash of the node, or on another machine if its machine is lost."""

    def __init__(self, command: Sequence[str]) -> None:
        self._is_draining = threading.Event()
        self._ended = threading.Event()
        self._process = subprocess.Popen(
            [sys.executable, SUPERVISE, *command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        # The process that Popen started has ended after its fork.
        self._process.wait()
        first = self._process.stdout.readline() if self._process.stdout is not None else ""
        self._ready = json.loads(first or '{"event": "ended"}')
        if self._ready["event"] != "ready":
            raise RuntimeError(f"The node did not join the server: {' '.join(command)}")
        threading.Thread(target=self._watch, daemon=True).start()

    def node_id(self) -> str:
        return str(self._ready["node_id"])

    def drain(self, seconds: float) -> bool:
        """Finishes the sessions of the node. After `seconds` it returns unfinished ones to the queue."""
        self._is_draining.set()
        self._stop()
        if self._ended.wait(seconds):
            return True
        self._stop()
        self._ended.wait()
        return False

    def _stop(self) -> None:
        if self._process.stdin is not None:
            self._process.stdin.write("stop\n")
            self._process.stdin.flush()

    def _watch(self) -> None:
        if self._process.stdout is not None:
            for _ in self._process.stdout:
                pass
        self._ended.set()
        if not self._is_draining.is_set():
            # Ray restarts the actor, and the node joins again under its id.
            os._exit(1)


class PolarNodes:
    """Nodes of one job. `with` drains them at the end; if the job is killed they drain by themselves.

    `arguments` are flags of `polar node`, and `data` is the folder for the data of all nodes. `token_file` has a token of
    scope node, and must be readable on each machine: Ray would store a token that is passed as a value.
    """

    def __init__(
        self,
        count: int,
        *,
        server: str,
        token_file: str,
        data: str,
        arguments: Sequence[str] = (),
        name: str = "ray",
        cpus: float = 1,
        strategy: str = "SPREAD",
        program: Sequence[str] = ("polar",),
    ) -> None:
        self._group = placement_group([{"CPU": cpus}] * count, strategy=strategy)
        self._actors: list[Any] = []
        ray.get(self._group.ready())
        for index in range(count):
            node_id = f"{name}-{index}"
            command = [*program, "node", "--json", "--id", node_id, "--dir", f"{data}/{node_id}"]
            command += ["--server", server, "--token-file", token_file, *arguments]
            bundle = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=index)
            self._actors.append(PolarNode.options(num_cpus=cpus, scheduling_strategy=bundle).remote(command))
        self.node_ids: list[str] = ray.get([actor.node_id.remote() for actor in self._actors])

    def drain(self, seconds: float = 600) -> bool:
        """Ends all nodes. Returns whether they could finish all sessions in this time."""
        finished = ray.get([actor.drain.remote(seconds) for actor in self._actors])
        for actor in self._actors:
            ray.kill(actor)
        remove_placement_group(self._group)
        return all(finished)

    def __enter__(self) -> PolarNodes:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.drain()
