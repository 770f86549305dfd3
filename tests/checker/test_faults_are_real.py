"""What the fault runner injects does happen: cut networks are cut, wrong clocks are wrong.

`python -m tests.checker.test_faults_are_real` is the part that needs a namespace of its own.
"""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.checker import namespaces
from tests.checker.clocks import WallClock, library
from tests.checker.namespaces import CLIENTS, STORE, Network, address

KINDS = ("isolated", "no peers", "deaf to peers", "no clients", "no store")
PORT = 9000
LISTEN = f"""
import socket
server = socket.create_server(("0.0.0.0", {PORT}))
print("ready", flush=True)
while True:
    server.accept()[0].close()
"""
CONNECT = f"""
import socket, sys
for host in sys.argv[1:]:
    try:
        socket.create_connection((host, {PORT}), timeout=0.3).close()
        print("open", flush=True)
    except OSError:
        print("shut", flush=True)
"""
SPIN = """
import sys, time
for _ in sys.stdin:
    print(time.time(), time.monotonic(), flush=True)
"""


def test_cuts_cut_what_they_say() -> None:
    if namespaces.obstacle():
        pytest.skip(namespaces.obstacle())
    module = [sys.executable, "-m", "tests.checker.test_faults_are_real"]
    done = subprocess.run(module, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    ways = ("to peer", "from peer", "to store", "to clients", "from clients", "to itself")
    cut = {kind: {way for way in ways if seen[kind][way] == "shut"} for kind in KINDS}
    assert cut == {
        "isolated": set(ways) - {"to itself"},
        "no peers": {"to peer", "from peer"},
        "deaf to peers": {"to peer", "from peer"},  # a handshake needs both ways
        "no clients": {"to clients", "from clients"},
        "no store": {"to store"},
    }
    assert set(seen["healed"].values()) == {"open"}
    assert not Path("/sys/class/net/lakehead0").exists()


def test_a_wall_clock_jumps_and_no_other_clock_does(tmp_path: Path) -> None:
    if library() is None:
        pytest.skip("libfaketime is not installed")
    clock = WallClock(tmp_path / "clock")
    with subprocess.Popen(
        [sys.executable, "-c", SPIN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **clock.environment},
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def error() -> tuple[float, float]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            wall, steady = map(float, process.stdout.readline().split())
            return wall - time.time(), steady - time.monotonic()

        assert max(map(abs, error())) < 1
        for jump in (600, -600):
            clock.jump(jump)
            deadline = time.monotonic() + 10
            while abs(error()[0] - jump) > 1:
                assert time.monotonic() < deadline, error()
            assert abs(error()[1]) < 1
        process.stdin.close()


def _serve_here() -> None:
    server = socket.create_server(("0.0.0.0", PORT))

    def accept() -> None:
        while True:
            server.accept()[0].close()

    threading.Thread(target=accept, daemon=True).start()


def _connects(under: tuple[str, ...], *hosts: str) -> list[str]:
    command = [*under, sys.executable, "-c", CONNECT, *hosts]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def _ways(network: Network) -> dict[str, str]:
    out = _connects(network.under(0), address(1), STORE, CLIENTS, "127.0.0.1")
    [peer] = _connects(network.under(1), address(0))
    [client] = _connects((), address(0))
    return {
        "to peer": out[0],
        "from peer": peer,
        "to store": out[1],
        "to clients": out[2],
        "from clients": client,
        "to itself": out[3],
    }


def main() -> None:
    """Try every cut around node 0 of two, and print who still reached whom."""
    namespaces.enter()
    with Network(2) as network:
        _serve_here()
        listeners = [
            subprocess.Popen(
                [*network.under(node), sys.executable, "-c", LISTEN], stdout=subprocess.PIPE
            )
            for node in range(2)
        ]
        try:
            for listener in listeners:
                assert listener.stdout is not None
                listener.stdout.readline()
            seen = {}
            for kind in KINDS:
                network.cut(0, kind)
                seen[kind] = _ways(network)
            network.cut(0, "lossy")  # a share of packets: nothing to be asserted of one connection
            network.heal(0)
            seen["healed"] = _ways(network)
        finally:
            for listener in listeners:
                listener.kill()
                listener.wait()
    print(json.dumps(seen))


if __name__ == "__main__":
    main()
