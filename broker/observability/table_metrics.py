"""The metrics of declared tables for Prometheus, where `lakehead materialize --follow` or
`lakehead maintain --follow` keeps them.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric

from lakehead.storage.clock import Clock
from lakehead.storage.errors import LakeheadError, SettingsError

_KEPT_S = 10.0
"""For how long what was looked up is shown: looking reads the logs of all tables."""


class Status(Protocol):
    """The status of a table: `lakehead.lake.jobs.table_status.TableStatus`, which this side of the
    program does not import. Its fields are those of `TABLE_METRICS`.
    """

    @property
    def label(self) -> str:
        """The topic that declares the table; TOPIC/TABLE for one of several."""


Statuses = Callable[[], Sequence[Status]]


class TableMetric(NamedTuple):
    """A metric of each table, by topic, and the field of its status, None where it is not known."""

    field: str
    name: str
    doc: str

    @property
    def shown_name(self) -> str:
        """The name as Prometheus sees it."""
        return f'{self.name}{{topic="..."}}'

    def read(self, status: Status) -> float | None:
        """Return the value of a table."""
        value = getattr(status, self.field)
        return None if value is None else float(value)


TABLE_METRICS = tuple(
    TableMetric(field, f"lakehead_table_{name}", doc)
    for field, name, doc in (
        ("failed", "failed", "1 while the table or its declaration cannot be read."),
        ("records_behind", "lag_records", "Offsets in objects that the table does not hold."),
        ("bytes_behind", "lag_bytes", "Bytes of the objects that hold them."),
        (
            "seconds_behind",
            "lag_seconds",
            "Age of the oldest of these objects; alert when it stays above the freshness.",
        ),
        ("freshness_seconds", "freshness_seconds", "The value of `lakehead.table.freshness.ms`."),
        ("last_commit_seconds", "last_commit_seconds", "When the table changed, since 1970."),
        ("files", "files", "Data files of the newest version."),
        ("bytes", "bytes", "Their size."),
        (
            "small_file_ratio",
            "small_file_ratio",
            "Share of files below a quarter of `lakehead.table.file.bytes`.",
        ),
        ("dead_letters", "dead_letters", "Records that are kept aside."),
        ("dropped", "dropped", "Records that `lakehead.table.on.error=drop` left out."),
        ("left_out", "left_out", "Rows whose values have fields that the table has no column for."),
        (
            "runs",
            "last_runs",
            "Commits with records among the newest 20; the next five metrics are of these.",
        ),
        ("bytes_read", "last_runs_read_bytes", "Bytes of records read."),
        ("bytes_written", "last_runs_written_bytes", "Bytes of data files written."),
        ("seconds", "last_runs_work_seconds", "Time at work."),
        ("store_requests", "last_runs_requests", "Requests for records and data files."),
        ("dollars", "last_runs_dollars", "Their price at S3 standard's prices."),
    )
)


class TableCollector:
    """Reads the status of tables on a scrape, and not again for some seconds."""

    def __init__(self, statuses: Statuses, clock: Clock) -> None:
        self._statuses = statuses
        self._clock = clock
        self._lock = threading.Lock()
        self._known: Sequence[Status] = ()
        self._looked_at = float("-inf")

    def collect(self) -> Iterator[Metric]:
        """Return every metric with its value of now; nothing while the cluster cannot be read."""
        try:
            found = self._now()
        except LakeheadError:
            return
        for metric in TABLE_METRICS:
            family = GaugeMetricFamily(metric.name, metric.doc, labels=["topic"])
            for status in found:
                value = metric.read(status)
                if value is not None:
                    family.add_metric([status.label], value)
            yield family

    def _now(self) -> Sequence[Status]:
        with self._lock:
            if self._clock.monotonic() - self._looked_at > _KEPT_S:
                self._known = self._statuses()
                self._looked_at = self._clock.monotonic()
            return self._known


@contextmanager
def served_tables(address: str, statuses: Statuses, clock: Clock) -> Iterator[int]:
    """Serve the metrics at `[host:]port` while the block runs, and give the port.

    Raises SettingsError when the address cannot be had.
    """
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        raise SettingsError(f"--metrics wants PORT or HOST:PORT, not {address!r}")
    registry = CollectorRegistry(auto_describe=False)
    registry.register(TableCollector(statuses, clock))
    try:
        server, thread = start_http_server(int(port), host.strip("[]") or "127.0.0.1", registry)
    except OSError as error:
        raise SettingsError(
            f"cannot listen on {address} for metrics: {error.strerror or error}: "
            "give another --metrics"
        ) from None
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
