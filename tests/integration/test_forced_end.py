"""A process whose threads are stuck lets go of what others wait for, and ends."""

import socket
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import wait_until

ROOT = Path(__file__).parents[2]
STUCK = """
import socket, sys, threading
from lakehead.broker.process_end import ForcedEnd

listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
accepted, _ = listening.accept()
ForcedEnd(grace_s=0.2).begin("a disk does not answer")
threading.Event().wait()
"""


def test_connections_end_and_the_status_tells_though_every_thread_waits() -> None:
    command = [sys.executable, "-c", STUCK]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
            assert client.recv(1) == b"", "the connection ends"
        assert "end_forced" in process.stdout.read()
        assert process.wait(30) == 74
    with socket.socket() as late:
        assert late.connect_ex(("127.0.0.1", port)) != 0


def test_sockets_go_though_the_kernel_keeps_the_process(tmp_path: Path) -> None:
    """`let_go` alone: descriptors stay, as those of a process do that cannot end."""
    program = """
import socket, sys, threading
from lakehead.broker.process_end import let_go

shared, ours = socket.socketpair()
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
accepted, _ = listening.accept()
let_go()
shared.send(b"a socket that is shared with others stays")
open(sys.argv[1], "wb").write(ours.recv(100))
threading.Event().wait()
"""
    told = tmp_path / "told"
    command = [sys.executable, "-c", program, str(told)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
                assert client.recv(1) == b""
            assert process.stdout.read() == "", "a supervisor sees the end of its output"
            with socket.socket() as late:
                assert late.connect_ex(("127.0.0.1", port)) != 0
            assert wait_until(lambda: told.exists() and told.read_bytes() != b"", 30)
            assert process.poll() is None
        finally:
            process.kill()
    assert told.read_bytes() == b"a socket that is shared with others stays"
