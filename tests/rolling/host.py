"""A host of tests/rolling/root: `host.py start FOLDER` makes and boots it, `host.py stop FOLDER`
ends it, `host.py boot FOLDER` starts it again.

Like an instance, it boots beside who started it: `start` returns at once. A file `broken` in the
folder is a host that does not come up.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
STOP_S = 60


def start(folder: Path, user_data: str) -> None:
    """Boot with these settings, in a session of its own. A machine before it that Terraform has
    given up halfway, and runs no destroy-time provisioner of, is gone by then.
    """
    folder.mkdir(exist_ok=True)
    stop(folder)
    settings = json.loads(user_data)
    config = folder / "lakehead.toml"
    lines = [f"{json.dumps(name)} = {json.dumps(value)}\n" for name, value in settings.items()]
    config.write_text("".join(lines))
    if not (folder / "broken").exists():
        boot(folder)


def boot(folder: Path) -> None:
    """Start the nodes with the settings that are there."""
    config = str(folder / "lakehead.toml")
    with (folder / "log").open("ab") as log, (folder / "boots").open("a") as boots:
        process = subprocess.Popen(
            [sys.executable, "-m", "lakehead", "start", "--config", config],
            cwd=REPOSITORY,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        boots.write(f"{process.pid}\n")


def pid_of(folder: Path) -> int | None:
    """Return the process of a host; None: it does not run."""
    boots = folder / "boots"
    pids = boots.read_text().split() if boots.exists() else []
    pid = int(pids[-1]) if pids else 0
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return None
    return pid if str(folder).encode() in command and status != "Z" else None


def stop(folder: Path, number: signal.Signals = signal.SIGTERM) -> None:
    """Shut it down, and return once it is down."""
    deadline = time.monotonic() + STOP_S
    while (pid := pid_of(folder)) is not None:
        if time.monotonic() > deadline:
            number = signal.SIGKILL
        os.kill(pid, number)
        while pid_of(folder) == pid and time.monotonic() < deadline:
            time.sleep(0.05)


if __name__ == "__main__":
    match sys.argv[1]:
        case "start":
            start(Path(sys.argv[2]), os.environ["USER_DATA"])
        case "boot":
            boot(Path(sys.argv[2]))
        case "stop":
            stop(Path(sys.argv[2]))
