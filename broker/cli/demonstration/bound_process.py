"""Becomes a command that the kernel ends when the process that started it ends, however that ends.

    python bound_process.py SIGTERM PORT COMMAND ...

With a port that is not 0, once a process listens there.

Run as a file, by `bound`: nothing of Lakehead is imported, so that it costs a command nothing.
"""

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence

_PR_SET_PDEATHSIG = 1


def bound(
    command: Sequence[str], *, by: signal.Signals = signal.SIGTERM, after_port: int = 0
) -> list[str]:
    """Return a command that runs `command` and has it get `by` when its parent ends; with a
    port, once a process listens there on this machine.
    """
    return [sys.executable, "-I", __file__, by.name, str(after_port), *command]


def _become(name: str, after_port: int, command: list[str]) -> None:
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background jobs ignore it
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.Signals[name]) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    while after_port and not _is_open(after_port):
        time.sleep(0.2)
    if os.getppid() == parent:  # otherwise it ended before this request
        os.execvp(command[0], command)  # noqa: S606 - no shell is the point


def _is_open(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError:
        return False
    return True


if __name__ == "__main__":
    _become(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
