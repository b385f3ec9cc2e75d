"""Runs a command until standard input ends, then sends SIGTERM and waits: `python supervise.py COMMAND…`.

Ray kills the process group of a worker that ends. This program leaves that group, and the pipe tells it that the worker has
ended, so that a node can finish its sessions. It prints the exit status of the command as the last line.
"""

import os
import subprocess
import sys
import threading

if os.fork() > 0:
    os._exit(0)
os.setsid()
child = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)


def forward_stops() -> None:
    # Each line is a stop signal; the end of the input is one more.
    for _ in sys.stdin:
        child.terminate()
    child.terminate()


threading.Thread(target=forward_stops, daemon=True).start()
status = child.wait()
try:
    print(f'{{"event": "ended", "status": {status}}}', flush=True)
except BrokenPipeError:
    pass
