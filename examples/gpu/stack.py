"""The processes of an experiment: the engine of this folder, and `polar up` in front of it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from polar_rl import Client

HERE = Path(__file__).parent
REPOSITORY = HERE.parent.parent


class Stack:
    """Starts both processes on free ports. Use it in a `with` block."""

    def __init__(self, model: Path, folder: Path, slots: int, length: int, sessions: int, polar: list[str], runtime: str):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.polar, self.processes = folder, polar, []
        self.engine_url = f"http://127.0.0.1:{_free_port()}"
        port = self.engine_url.rpartition(":")[2]
        serve = [sys.executable, str(HERE / "serve.py"), "--model", str(model), "--port", port]
        self._start("engine", [*serve, "--slots", str(slots), "--length", str(length)])
        self._wait_for_engine()
        port = str(_free_port())
        up = [*polar, "up", "--dir", str(folder / "up"), "--port", port, "--engine-url", self.engine_url, "--json"]
        widths = [f"--{stage}={sessions}" for stage in ("init", "ready", "run", "postrun")]
        self._start("polar", [*up, "--context", str(length - 1), "--runtime", runtime, *widths])
        ready = self._wait_for_polar()
        self.client = Client(ready["url"], json.loads(Path(ready["tokens_file"]).read_text())["trainer"])

    def call_engine(self, path: str, body: dict | None = None) -> dict:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.engine_url + path, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.loads(answer.read() or b"{}")

    def _start(self, name: str, command: list[str]) -> None:
        log = open(self.folder / f"{name}.log", "w")
        process = subprocess.Popen(command, cwd=REPOSITORY, stdout=log, stderr=subprocess.STDOUT, env=os.environ)
        self.processes.append((name, process))

    def _check(self) -> None:
        for name, process in self.processes:
            if process.poll() is not None:
                text = (self.folder / f"{name}.log").read_text()[-2000:]
                raise RuntimeError(f"{name} ended with status {process.returncode}:\n{text}")
        time.sleep(0.1)

    def _wait_for_engine(self) -> None:
        while True:
            self._check()
            try:
                self.call_engine("/health")
                return
            except OSError:
                continue

    def _wait_for_polar(self) -> dict:
        log = self.folder / "polar.log"
        while True:
            self._check()
            for line in log.read_text().splitlines():
                if line.startswith("{") and '"url"' in line:
                    return json.loads(line)

    def __enter__(self) -> "Stack":
        return self

    def __exit__(self, *_: object) -> None:
        for _, process in reversed(self.processes):
            process.terminate()
        for _, process in reversed(self.processes):
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]
