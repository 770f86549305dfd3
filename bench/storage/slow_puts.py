"""The object WAL of a real node before a store with a slow put in a hundred, with hedged puts and
without.

A proxy before a local S3 server has each response wait 20 ms, and one of a hundred puts of the log
480 ms more. Server, proxy, node and producer are processes of their own. The producer sends at a
steady rate from the node's first second on, so the puts before anything is known of the store
count too. Latencies are from send to acknowledgement.
"""

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bench.figures import Figure
from bench.lakehead_server import ROOT, lakehead_server
from bench.process import free_port
from bench.s3_server import S3Server, running_server
from bench.storage.cold_read import HOT, Foreground
from bench.workloads import RunFailed, create_topic

PART = "slow puts"
LATENCY_MS = 20.0
TAIL_MS, TAIL_SHARE = 480.0, 0.01
"""On top of the latency."""
P50_MS_MAX, P99_MAX = 45.0, 2.0
WALS = {"hedged": "object:", "not hedged": "object:?hedge=0"}


def run(folder: Path, quick: bool) -> Sequence[Figure]:
    """Measure in `folder`. Raises MissingTool."""
    seconds = 10.0 if quick else 60.0
    figures: list[Figure] = []
    for name, wal in WALS.items():
        own = folder / name.replace(" ", "-")
        own.mkdir()
        figures += _measured(own, name, wal, seconds)
    return figures


def _measured(folder: Path, name: str, wal: str, seconds: float) -> list[Figure]:
    port = free_port()
    with running_server(folder / "s3") as server, _slow(server) as slow:
        flags = ("--store", f"{server.uri}/bench", "--wal", wal)
        environment = {**slow.environment}
        with lakehead_server(folder, *flags, environment=environment, metrics_port=port) as node:
            create_topic(node, HOT, {})
            foreground = Foreground(node)
            foreground.start()
            time.sleep(seconds)
            foreground.stop()
            puts = node.metric("lakehead_wal_puts_total")
            hedges = node.metric("lakehead_wal_hedged_puts_total")
    times = sorted(foreground.times_ms)
    p50, p99, p999 = (times[int(len(times) * share)] for share in (0.5, 0.99, 0.999))
    is_hedged = name == "hedged"
    return [
        Figure(
            part=PART,
            name=f"acknowledged, p50, {name}",
            value=p50,
            unit="ms",
            goal=P50_MS_MAX if is_hedged else None,
            more_is_better=False,
        ),
        Figure(
            part=PART,
            name=f"p99, {name}",
            value=p99,
            unit="ms",
            peer="p50",
            peer_value=p50,
            goal=P99_MAX if is_hedged else None,
            more_is_better=False,
        ),
        Figure(part=PART, name=f"p99.9, {name}", value=p999, unit="ms", more_is_better=False),
        Figure(part=PART, name=f"time for each put, {name}", value=seconds / puts * 1e3, unit="ms"),
        Figure(part=PART, name=f"hedges, {name}", value=hedges / puts * 100, unit="% of puts"),
    ]


@contextlib.contextmanager
def _slow(server: S3Server) -> Iterator[S3Server]:
    """Run the proxy; yield the server as its clients see it then."""
    command = [
        *(sys.executable, "-m", "tests.support.s3_proxy", "--upstream", server.endpoint),
        *("--seed", "1", "--latency-ms", str(LATENCY_MS)),
        *("--tail-ms", str(TAIL_MS), "--tail-share", str(TAIL_SHARE), "--tail-key", "/wal/"),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as proxy:
        try:
            assert proxy.stdout is not None
            endpoint = proxy.stdout.readline().strip()
            if not endpoint:
                raise RunFailed("the proxy does not start")
            yield replace(server, endpoint=endpoint)
        finally:
            proxy.terminate()
