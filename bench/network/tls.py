"""CPU seconds of a node's side for a GB, received and sent: without TLS, and by each of the ways in
which Python can serve TLS. Kernel TLS needs a kernel with the module tls and Python 3.12.
"""

import socket
import ssl
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from bench.figures import Figure
from bench.network._transports import TRANSPORTS, chunks
from lakehead.broker.security.development_certs import DevelopmentCa, utc
from lakehead.storage.clock import SystemClock

PART = "tls"
SIZE, ROUNDS = 1 << 30, 3
QUICK_SIZE = 128 << 20


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure each transport in turn, several times; return the medians."""
    authority = DevelopmentCa(folder, utc(SystemClock().now_ms()))
    keys = authority.issue("node", hosts=["localhost"])
    size = QUICK_SIZE if quick else SIZE
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(1 if quick else ROUNDS):
        for direction in ("receive", "send"):
            for transport in TRANSPORTS:
                seconds = _measure(transport, direction, size, keys, authority.certificate_path)
                found.setdefault((direction, transport), []).append(seconds * 1e9 / size)
    return [
        Figure(
            part=PART,
            name=f"{direction}, {transport}",
            value=statistics.median(values),
            unit="CPU s/GB",
            goal=None,
            more_is_better=False,
        )
        for (direction, transport), values in found.items()
    ]


def _measure(transport: str, direction: str, size: int, keys: Path, trusted: Path) -> float:
    command = [sys.executable, "-m", "bench.network._transports", transport, str(size), str(keys)]
    with subprocess.Popen([*command, direction], stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        raw = socket.create_connection(("localhost", port))
        one = raw
        if transport != "plain":
            context = ssl.create_default_context(cafile=str(trusted))
            one = context.wrap_socket(raw, server_hostname="localhost")
        with one:
            if direction == "receive":
                for chunk in chunks(size, bytes(1 << 20)):
                    one.sendall(chunk)
                one.recv(1)
            else:
                one.sendall(b"?")
                buffer, left = bytearray(1 << 20), size
                while left > 0:
                    left -= one.recv_into(buffer)
        return float(server.stdout.readline())
