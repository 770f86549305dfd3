"""Status of declared tables: lag, files, dead letters, and the cost of the last runs.

Lag is known from the metadata alone, so a table that cannot be read has a row like the others, with
the error and the lag of the last successful reading. `why_late` names the cause of a late table,
by the metadata alone.
"""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial

from lakehead.lake.catalog import Catalog
from lakehead.lake.declaration.table_declaration import TableDeclaration, dead_letters_uri
from lakehead.lake.errors import as_error
from lakehead.lake.jobs.table_due import LogLost, check_ends, declared_tables, lag_of, topic_of
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.state import MetadataImage, TablesKeeping, TableState, TopicState

LATE_AFTER = 2
"""A table is late when it is behind by this many times the freshness that its topic declares."""


def why_late(status: "TableStatus", state: MetadataImage) -> str | None:
    """Return why a table is late and the command that helps, None for one that is not."""
    wanted = status.freshness_seconds
    if wanted is None or status.seconds_behind <= LATE_AFTER * wanted:
        return None
    return f"late: {wanted:.0f} s are declared, and {_cause(status, state)}"


def _cause(status: "TableStatus", state: MetadataImage) -> str:
    if status.error is not None:
        return "its last turn failed (see the error)"
    if status.holder is not None:
        return (
            f"{status.holder} keeps it and is {status.records_behind} records behind: it does not "
            "keep up, or a transaction of a producer is open"
        )
    by_hand = f"run: lakehead materialize {status.topic} (--follow for every table, for good)"
    living = [node for node in state.nodes.values() if not node.is_fenced]
    if not living:
        return f"no process keeps it, since no node lives: start a node, or {by_hand}"
    first = min(living, key=lambda node: node.node_id)
    match first.tables:
        case TablesKeeping.KEPT:
            return (
                f"no process keeps it: the one of node {first.node_id} has not started "
                f"yet, or fails (tables_process_ended in the node's log); {by_hand}"
            )
        case TablesKeeping.OFF:
            return (
                f"no process keeps it: maintain or maintain.tables is false on node "
                f"{first.node_id}, which would; set both to true there, or {by_hand}"
            )
        case TablesKeeping.NOT_INSTALLED:
            return (
                f"no process keeps it: the packages of the lake are missing on node "
                f"{first.node_id}, which would; there: pip install 'lakehead[lake]', or elsewhere "
                f"{by_hand}"
            )
    return f"no process keeps it: {by_hand}"


REQUEST_TIMEOUT_S = 20.0
"""Timeout for the stores of tables, in seconds."""

_LOOKS_AT_ONCE = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class TableStatus:
    """A declared table. None is an unknown value: `error` is the reason, or there is no table yet.
    It is also the error of the last turn at the table. `late` is the cause of a lag beyond the
    declared freshness. `name` is the table's, that of its topic unless the topic has several.

    `seconds_behind` is the age of the oldest object with records that the table does not hold,
    `holder` the process with the lease. `dropped` records, and `left_out` ones that are rows
    without some of their fields, are counted since the table was made. Costs are of the last `runs`
    commits that brought records.
    """

    topic: str
    name: str = ""
    table: str = ""
    mode: str = ""
    value_format: str = ""
    error: str | None = None
    late: str | None = None
    records_behind: int = 0
    bytes_behind: int = 0
    seconds_behind: float = 0.0
    freshness_seconds: float | None = None
    holder: str | None = None
    version: int | None = None
    last_commit_ms: int | None = None
    files: int | None = None
    bytes: int | None = None
    small_file_ratio: float | None = None
    dead_letters: int | None = None
    dropped: int | None = None
    left_out: int | None = None
    runs: int | None = None
    bytes_read: int | None = None
    bytes_written: int | None = None
    seconds: float | None = None
    store_requests: int | None = None
    dollars: float | None = None

    @property
    def label(self) -> str:
        """The topic, or TOPIC/TABLE for a table with another name."""
        return self.topic if self.name in {"", self.topic} else f"{self.topic}/{self.name}"

    @property
    def failed(self) -> bool:
        """True if something is wrong with it."""
        return self.error is not None

    @property
    def last_commit_seconds(self) -> float | None:
        """Time of the last change, in seconds since 1970."""
        return None if self.last_commit_ms is None else self.last_commit_ms / 1000


def table_statuses(
    catalog: Catalog,
    now_ms: int,
    *,
    topics: Sequence[str] = (),
    timeout_s: float = REQUEST_TIMEOUT_S,
) -> list[TableStatus]:
    """Return the status of every declared table, or of those of `topics`, by topic. A table without
    a response after `timeout_s` has that as its error.
    """
    declared = declared_tables(catalog.state, topics)
    slots, clock = threading.Semaphore(_LOOKS_AT_ONCE), SystemClock()
    until = clock.monotonic() + timeout_s
    looks = {
        key: _begun(partial(_looked, catalog, one, now_ms), slots, timeout_s)
        for key, one in declared.items()
        if not isinstance(one, SettingsError)
    }
    found = []
    for key, one in declared.items():
        state = catalog.topic(topic_of(key))
        if isinstance(one, SettingsError):
            lag = _with_lag(TableStatus(topic=state.name), catalog, state, None, now_ms)
            found.append(replace(lag, error=str(one)))
            continue
        known = _with_lag(_named(one, catalog), catalog, state, None, now_ms)
        known = replace(known, holder=_holder(catalog, one.topic_id, now_ms))
        try:
            found.append(looks[key].result(max(0.0, until - clock.monotonic())))
        except TimeoutError:
            found.append(replace(known, error=f"{known.table} does not respond"))
        except BaseException as caught:  # noqa: BLE001 - one table never stops the others
            error = as_error(caught, f"status of {known.table}")
            found.append(replace(known, error=str(error)))
    return [replace(status, late=why_late(status, catalog.state)) for status in found]


def _looked(catalog: Catalog, declared: TableDeclaration, now_ms: int) -> TableStatus:
    """Look at a table's log. Raises TableUnavailable, SettingsError."""
    from lakehead.lake.tables.left_out import DROPPED, LEFT_OUT, counted
    from lakehead.lake.tables.owner import OtherTopic, check_topic
    from lakehead.lake.tables.table_statistics import table_statistics

    topic = catalog.topic(declared.topic)
    status = replace(_named(declared, catalog), holder=_holder(catalog, declared.topic_id, now_ms))
    statistics = table_statistics(status.table, file_bytes=declared.file_bytes)
    if statistics is None:
        return _with_lag(status, catalog, topic, (), now_ms)
    offsets = tuple(
        statistics.table.last_offset(topic.topic_id, partition) + 1
        for partition in range(len(topic.partitions))
    )
    try:
        check_topic(statistics.table, topic.name, topic.topic_id)
        check_ends(catalog.state, topic, status.table, offsets)
    except (OtherTopic, LogLost) as error:  # it holds nothing of this topic, whatever was said
        return replace(_with_lag(status, catalog, topic, (), now_ms), error=str(error))
    letters = table_statistics(
        dead_letters_uri(status.table), file_bytes=declared.file_bytes, with_cost=False
    )
    cost = statistics.cost
    return replace(
        _with_lag(status, catalog, topic, offsets, now_ms),
        version=statistics.version,
        last_commit_ms=statistics.last_commit_ms,
        files=statistics.files,
        bytes=statistics.size_bytes,
        small_file_ratio=statistics.small_files / statistics.files if statistics.files else 0.0,
        dead_letters=0 if letters is None else letters.rows,
        dropped=counted(statistics.table, DROPPED),
        left_out=counted(statistics.table, LEFT_OUT),
        runs=cost.runs,
        bytes_read=cost.bytes_read,
        bytes_written=cost.bytes_written,
        seconds=cost.seconds,
        store_requests=cost.gets + cost.puts,
        dollars=cost.dollars,
    )


def _named(declared: TableDeclaration, catalog: Catalog) -> TableStatus:
    held = catalog.state.tables.get(declared.topic_id, TableState())
    return TableStatus(
        topic=declared.topic,
        name=declared.name,
        table=declared.uri(catalog.uri),
        error=_problem(held, declared),
        mode=declared.mode,
        value_format=declared.value_format,
        freshness_seconds=declared.freshness_ms / 1000,
    )


def _problem(held: TableState, declared: TableDeclaration) -> str | None:
    """Return why the last turn at a table failed: of several tables, each has a line."""
    if not declared.is_named:
        return held.problem or None
    begin = f"{declared.key}: "
    words = (line for line in held.problem.splitlines() if line.startswith(begin))
    return next(words, "").removeprefix(begin) or None


def _with_lag(
    status: TableStatus,
    catalog: Catalog,
    topic: TopicState,
    offsets: tuple[int, ...] | None,
    now_ms: int,
) -> TableStatus:
    """The status with the lag of a table that has the records below `offsets` (None: below those in
    the metadata log).
    """
    if offsets is None:
        offsets = catalog.state.tables.get(topic.topic_id, TableState()).offsets
    lag = lag_of(catalog.state, topic, offsets)
    return replace(
        status,
        records_behind=lag.records,
        bytes_behind=lag.size_bytes,
        seconds_behind=lag.seconds(now_ms),
    )


def _holder(catalog: Catalog, topic_id: str, now_ms: int) -> str | None:
    held = catalog.state.tables.get(topic_id)
    return None if held is None or held.until_ms <= now_ms else held.holder.partition("/")[0]


def _begun(
    work: Callable[[], TableStatus], slots: threading.Semaphore, wait_s: float
) -> Future[TableStatus]:
    """Run work in a daemon thread: a store that is gone may hang for long. Work that has waited too
    long for other work is not begun.
    """
    future: Future[TableStatus] = Future()

    def run() -> None:
        if not slots.acquire(timeout=wait_s):
            return
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            future.set_exception(error)
        finally:
            slots.release()

    threading.Thread(target=run, name="table-status", daemon=True).start()
    return future
