"""The order of a node's start, what it loads, and its cost."""

import re
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

import psutil

from bench.lakehead_server import lakehead_server
from tests.support.broker_process import HASTY

ROOT = Path(__file__).parents[2]
START = """
import asyncio, sys
from lakehead.broker.node import start_node
from lakehead.broker.settings import Settings
from lakehead.storage.object_store.memory import MemoryStore

loaded = []

class WatchedStore(MemoryStore):
    async def create(self, key, pieces):
        if "/log/" in key:
            loaded.append("lakehead.broker.api.fetch" in sys.modules)
        await super().create(key, pieces)

async def main():
    node = await start_node(
        Settings(data=sys.argv[1], port=0, wal_size=16 << 20), store=WatchedStore()
    )
    await node.close()
    print("loaded at entries of the metadata:", loaded)

asyncio.run(main())
"""


def test_the_code_of_the_apis_is_loaded_before_a_node_has_to_send_heartbeats(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", START, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "entries of the metadata: [True" in done.stdout, done.stdout
    assert "False" not in done.stdout


LOADED = {
    "annotated_doc",
    "crc32c",
    "immutables",
    "cramjam",
    "kio",
    "lakehead",
    "msgspec",
    "shellingham",
    "structlog",
    "typer",
    "typing_extensions",
    "uvloop",
}
"""Packages beside the standard library that a node has loaded when it is ready. Each of numpy,
cryptography, rich, pydantic and prometheus_client costs 10 to 60 ms, and up to 15 MB."""
_IF_THERE = {"_distutils_hack", "greenlet", "sitecustomize"}
"""Packages that those above, or Python itself, load where something else has installed them."""
_IMPORTED = re.compile(r"^import '(\w+)['.]", re.MULTILINE)
API_VERSIONS = struct.pack(">ihhih", 10, 18, 0, 1, -1)
START_CPU_S = 1.5
IDLE_BYTES = 100_000_000
IDLE_CPU_S_PER_S = 0.02


def first_response(port: int) -> None:
    """Wait for the response to an ApiVersions request."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=60) as client:
                client.sendall(API_VERSIONS)
                if client.recv(4):
                    return
        except OSError:
            time.sleep(0.005)
    raise TimeoutError("no response to ApiVersions")


def processor_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def test_a_node_that_is_ready_has_loaded_no_package_but_what_its_start_needs(
    tmp_path: Path,
) -> None:
    with lakehead_server(tmp_path, *HASTY, under=("-v",)) as server:
        first_response(server.port)
        log = server.log.read_text(errors="replace")
    until_ready = log[: log.index("node_ready")]
    loaded = {*_IMPORTED.findall(until_ready)} - sys.stdlib_module_names
    assert loaded - _IF_THERE == LOADED


def test_a_start_is_short_and_a_node_without_work_is_small_and_quiet(tmp_path: Path) -> None:
    bytecode = {"PYTHONPYCACHEPREFIX": str(tmp_path / "bytecode")}
    with lakehead_server(tmp_path, *HASTY, environment=bytecode) as server:
        first_response(server.port)  # there are bytecode and the folder from now on
    with lakehead_server(tmp_path, *HASTY, environment=bytecode) as server:
        first_response(server.port)
        process = psutil.Process(server.process.pid)
        start = processor_s(process)
        time.sleep(2)  # for the ends of a start: numpy, the controller's lease
        before, began = processor_s(process), time.monotonic()
        time.sleep(8)
        idle = (processor_s(process) - before) / (time.monotonic() - began)
        size = process.memory_info().rss
    assert start < START_CPU_S
    assert size < IDLE_BYTES
    assert idle < IDLE_CPU_S_PER_S
