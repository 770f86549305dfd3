"""Requests to the object store, and their price, of a broker that counts them on its metrics page.

A store in files is counted as if it were S3, by the same rules.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.process import ServerProcess
from bench.workloads import Figures

SETTLE_S = 30.0
"""Longer than data waits for its upload (`upload.age.ms`)."""
SETTLED_BYTES = 1 << 20
"""Bytes that the log may hold after the wait: records of the broker's own topics."""
_POLL_S = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreUse:
    """Counters since a broker's start."""

    requests: float
    dollars: float

    @classmethod
    def of(cls, server: ServerProcess) -> "StoreUse":
        """Return those of a broker at this moment."""
        return cls(
            requests=server.metric("lakehead_store_requests_total"),
            dollars=server.metric("lakehead_store_cost_dollars_total"),
        )


def settle(server: ServerProcess) -> None:
    """Wait until what was produced is in objects, for SETTLE_S at most."""
    deadline = time.monotonic() + SETTLE_S
    while time.monotonic() < deadline:
        if server.metric("lakehead_wal_used_bytes") < SETTLED_BYTES:
            return
        time.sleep(_POLL_S)


def counted(server: ServerProcess, run: Callable[[], Figures], value_bytes: int) -> Figures:
    """Run, wait for the uploads that follow, and add requests and dollars to the figures. The
    uploads do not disturb the next run either. A server that counts nothing only runs.
    """
    if not server.metrics_port:
        return run()
    settle(server)
    before = StoreUse.of(server)
    figures = run()
    settle(server)
    after = StoreUse.of(server)
    return replace(
        figures,
        requests_per_gb=(after.requests - before.requests) / (value_bytes / 2**30),
        dollars_per_tb=(after.dollars - before.dollars) / (value_bytes / 2**40),
    )
