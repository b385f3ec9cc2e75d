"""A server that plays scripted answers, and a proxy that cuts connections."""

from __future__ import annotations

import contextlib
import json
import random
import socket
import threading
from types import TracebackType
from typing import Any, Callable, Optional

from polar_rl._retries import Clock

Answer = Callable[["Request"], bytes]


class Request:
    def __init__(self, head: bytes, body: bytes) -> None:
        first, *lines = head.decode().split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.headers = {name.lower(): value.strip() for name, value in (line.split(":", 1) for line in lines if line)}
        self.body = body


class Listener:
    """Accepts connections in threads until the end of a `with` block."""

    def __init__(self) -> None:
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self) -> Any:
        return self

    def __exit__(
        self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        # close() alone does not end accept() of another thread.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            try:
                self.serve(connection)
            except OSError:
                pass

    def serve(self, connection: socket.socket) -> None:
        raise NotImplementedError


class ScriptedServer(Listener):
    """Sends one answer for each request; the last answer repeats. The connection is closed after each answer."""

    def __init__(self, *answers: Answer) -> None:
        self.requests: list[Request] = []
        self._answers = answers
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        received = b""
        while b"\r\n\r\n" not in received:
            received += connection.recv(65536)
        head, body = received.split(b"\r\n\r\n", 1)
        request = Request(head, body)
        while len(request.body) < int(request.headers.get("content-length", "0")):
            request.body += connection.recv(65536)
        self.requests.append(request)
        answer = self._answers[min(len(self.requests), len(self._answers)) - 1]
        connection.sendall(answer(request))


class CuttingProxy(Listener):
    """Forwards connections, and cuts answers at a random byte until it has cut `cuts` of them."""

    def __init__(self, target: str, cuts: int, seed: int) -> None:
        host, port = target.removeprefix("http://").split(":")
        self._target = (host, int(port))
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self.cuts_left = cuts
        super().__init__()

    def serve(self, connection: socket.socket) -> None:
        with self._lock:
            # Longer answers are always cut, shorter ones sometimes.
            limit = self._random.randrange(0, 1000) if self.cuts_left > 0 else None
        with socket.create_connection(self._target) as upstream:
            threading.Thread(target=self._copy, args=(connection, upstream, None), daemon=True).start()
            self._copy(upstream, connection, limit)
            # close() alone does not end recv() of another thread.
            for each in (connection, upstream):
                with contextlib.suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)

    def _copy(self, source: socket.socket, target: socket.socket, limit: Optional[int]) -> None:
        try:
            while data := source.recv(65536):
                if limit is not None and len(data) > limit:
                    target.sendall(data[:limit])
                    with self._lock:
                        self.cuts_left -= 1
                    return
                if limit is not None:
                    limit -= len(data)
                target.sendall(data)
        except OSError:
            pass


class HurriedClock(Clock):
    """Delays end at once and are recorded."""

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.seconds = 0.0
        self.now = lambda: self.seconds
        self.random = lambda: 1.0
        self.sleep = self._sleep

    def _sleep(self, seconds: float) -> None:
        self.delays.append(seconds)
        self.seconds += seconds


def answer(status: int, body: Any, headers: Optional[dict[str, str]] = None) -> Answer:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"HTTP/1.1 {status} X", f"content-length: {len(data)}"]
    lines += [f"{name}: {value}" for name, value in (headers or {}).items()]
    return lambda _: "\r\n".join([*lines, "", ""]).encode() + data


def hang_up(_: Request) -> bytes:
    return b""
