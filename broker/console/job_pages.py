"""The pages of jobs and of connectors: what a cluster knows of work that other processes do.

A job leaves records of its run in the store (`lakehead.storage.jobs.run_record`), and its commits
in the metadata log, under a name with its kind in front. A connector leaves positions in a topic,
and its transactions.
"""

import json
import math
from collections.abc import Iterable, Iterator
from typing import Any

from lakehead.broker.console.audit_trail import HIDDEN, names_hidden_topic
from lakehead.broker.console.page_request import Reply, Request
from lakehead.broker.console.record_filter import RecordFilter
from lakehead.broker.console.records import RecordSearch, fetch_batches
from lakehead.broker.console.renderer import Renderer
from lakehead.broker.console.viewer import Viewer
from lakehead.broker.diagnosis.metadata_log import public_entry, record_counts
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.errors import NotFound, StorageError
from lakehead.storage.jobs.run_record import Run, RunRecords
from lakehead.storage.metadata.state import MetadataImage, TopicState

_KINDS_MAX = 20
CONNECTOR = "lakehead-connect-"
"""The beginning of a connector's topic of positions, and of its transactional id."""
DEAD_LETTERS = ".dead-letters"
_SHOWN_MAX = 200
_RUNS_SHOWN = 60
_LOOK_S = 2.0
_STATUSES_MAX = 50
"""Connectors of which the last run is looked for."""
_STATUS_OFFSETS = 1_000
_STATUS_S_MAX = 120.0
"""A run leaves a status every 30 seconds."""


def last_writers(state: MetadataImage) -> list[tuple[str, str, int]]:
    """Return the last writer of each kind that is not a node: its kind, its name and the number of
    its last entry, the newest first.
    """
    newest: dict[str, tuple[str, int]] = {}
    for name, writer in state.writers.items():
        kind = name.partition("/")[0]
        if not kind.isdecimal() and writer.entry > newest.get(kind, ("", -1))[1]:
            newest[kind] = name, writer.entry
    rows = [(kind, name, entry) for kind, (name, entry) in newest.items()]
    return sorted(rows, key=lambda row: -row[2])[:_KINDS_MAX]


def status_of(text: str, now_ms: int) -> dict[str, Any]:
    """Return the status of a connector's run as its record has it
    (`lakehead.connectors.runtime.run_status`): `state` is `abandoned` if it is too old for a run
    that goes on. Empty for a record of another form.
    """
    try:
        found = json.loads(text)
        state, started, updated = found["state"], found["started_ms"], found["updated_ms"]
        starts, trace, holder = found["starts"], found["trace"], found["worker_id"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    numbers, texts = (started, updated, starts), (state, trace, holder)
    if not all(type(one) is int for one in numbers) or not all(type(one) is str for one in texts):
        return {}
    if state == "RUNNING" and now_ms - updated > _STATUS_S_MAX * 1000:
        state = "abandoned"
    return {
        "state": state.lower(),
        "started": started,
        "updated": updated,
        "starts": starts,
        "trace": trace,
        "holder": holder,
    }


def _counted(state: MetadataImage, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield topics with the number of offsets that they have in objects."""
    for name in names:
        streams = [state.streams[one] for one in state.topics[name].partitions]
        count = sum(stream.end_offset - stream.start_offset for stream in streams)
        newest = max(
            (extent.max_timestamp for stream in streams for extent in stream.extents),
            default=-1,
        )
        yield {"topic": name, "count": count, "newest": newest}


def _figure(value: object) -> str:
    """Return a value of a result as people read it."""
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else str(value)


class JobPages:
    """Makes the pages."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._node = renderer.node
        self._records = RunRecords(renderer.node.engine.metadata.store)
        self._looked_at = -math.inf
        self._runs: list[Run] = []
        self._commits_read: dict[int, dict[str, Any]] = {}
        """Rows of the last look, by the numbers of entries, which never change: the page is loaded
        again every few seconds.
        """

    async def _newest_runs(self) -> list[Run]:
        """Return the last runs; however many viewers there are, the store is listed every
        `_LOOK_S` at most.
        """
        clock = self._node.clock
        if clock.monotonic() - self._looked_at >= _LOOK_S:
            self._looked_at = clock.monotonic()
            self._runs = await self._records.newest(_RUNS_SHOWN, clock.now_ms())
        return [run.at(clock.now_ms()) for run in self._runs]

    async def _run_rows(self, viewer: Viewer) -> list[dict[str, Any]]:
        state = self._node.state
        has_rules = self._node.services.authorizer.is_enabled
        rows = []
        for run in await self._newest_runs():
            figures = (f"{name} {_figure(one)}" for name, one in run.result.items() if one)
            end = run.reason or ", ".join(figures)
            row: dict[str, Any] = {
                "job": run.job,
                "state": run.state.value,
                "holder": run.holder,
                "started": run.started_ms,
                "seconds": run.seconds,
                "share": run.share,
                "done_bytes": run.done_bytes,
                "total_bytes": run.total_bytes,
                "done_units": run.done_units,
                "total_units": run.total_units,
                "bytes_per_s": run.bytes_per_s,
                "doing": run.doing,
                "reason": run.reason,
                "end": end,
            }
            if has_rules:
                for name in ("holder", "doing", "reason", "end"):
                    if names_hidden_topic(row[name], viewer, state):
                        row[name] = HIDDEN
            rows.append(row)
        return rows

    def jobs(self, request: Request) -> Reply:
        """Return the maintenance of this node, and the last commit of each kind of job."""
        self._renderer.require(request.viewer.sees_cluster, "describe the cluster")
        node = self._node
        maintenance, tables = node.maintenance, node.tables
        return self._renderer.render(
            "jobs.html",
            node_id=node.services.node_id,
            is_lowest=node.state.is_lowest(node.services.node_id),
            maintenance=None
            if maintenance is None
            else {
                "due": maintenance.due,
                "runs": maintenance.runs,
                "failures": maintenance.failures,
            },
            tables=None
            if tables is None
            else {"is_running": tables.is_running, "starts": tables.starts},
            commits=self._renderer.on_loop(self._commits()),
            **self._found_runs(request.viewer),
        )

    def _found_runs(self, viewer: Viewer) -> dict[str, Any]:
        try:
            return {"runs": self._renderer.on_loop(self._run_rows(viewer)), "problem": ""}
        except StorageError as error:
            return {"runs": [], "problem": f"the runs cannot be read now: {error}"}

    async def _commits(self) -> list[dict[str, Any]]:
        store = self._node.engine.metadata.store
        rows, read = [], {}
        for kind, name, number in last_writers(self._node.state):
            row = {"kind": kind, "process": name, "number": number, "time": -1, "records": ""}
            if number in self._commits_read:
                row = read[number] = self._commits_read[number]
            else:
                try:
                    entry = await public_entry(store, number)
                    row["time"] = entry.get("time_ms", -1)
                    row["records"] = record_counts(entry.get("records", ()))
                    read[number] = row
                except (NotFound, StorageError):  # a checkpoint has its records
                    pass
            rows.append(row)
        self._commits_read = read
        return rows

    def connectors(self, request: Request) -> Reply:
        """Return the connectors that the viewer sees, and the topics of records that they could not
        use.
        """
        state = self._node.state
        names = [
            one for one in state.topics if one.startswith(CONNECTOR) or one.endswith(DEAD_LETTERS)
        ]
        seen = sorted(self._renderer.seen(request.viewer, names))[:_SHOWN_MAX]
        found = [one for one in seen if one.startswith(CONNECTOR)]
        return self._renderer.render(
            "connectors.html",
            connectors=self._renderer.on_loop(self._connectors(request.viewer, state, found)),
            dead_letters=list(_counted(state, (one for one in seen if one.endswith(DEAD_LETTERS)))),
            nodes=len(state.live_node_ids),
        )

    async def _connectors(
        self, viewer: Viewer, state: MetadataImage, names: Iterable[str]
    ) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for row in _counted(state, names):
            name = row["topic"].removeprefix(CONNECTOR)
            shown = {**row, "name": name, "state": "", "since": -1}
            status = {}
            if len(rows) < _STATUSES_MAX:
                status = await self._status(state.topics[row["topic"]], name)
            may_read = viewer.reads_topic(row["topic"])
            shown["run"] = status
            shown["reason"] = status.get("trace", "") if may_read else ""
            shown["hides_reason"] = bool(status.get("trace")) and not may_read
            if viewer.sees_transactional_id(row["topic"]):
                shown |= await self._transaction(row["topic"])
            rows.append(shown)
        return rows

    async def _status(self, topic: TopicState, name: str) -> dict[str, Any]:
        """Return the last status that a connector has left in its topic of positions; none if it is
        not among the newest `_STATUS_OFFSETS` offsets, or cannot be read.
        """
        stream_id, newest = topic.partitions[0], _STATUS_OFFSETS
        try:
            found = await fetch_batches(
                self._node, stream_id, offset=None, time_ms=None, newest=newest
            )
        except StorageError:  # the store fails, or the topic was deleted
            return {}
        search = RecordSearch(
            RecordFilter(key=f"status-connector-{name}"),
            limit=_STATUS_OFFSETS,
            is_time_over=lambda: False,
        )
        search.add(found)
        if not search.records:
            return {}
        return status_of(search.records[-1].value or "", self._node.clock.now_ms())

    async def _transaction(self, name: str) -> dict[str, Any]:
        """Return the state of a connector's transactional id, where this node coordinates it."""
        try:
            found = await self._node.transaction_coordinator.describe(name)
        except KafkaError:
            return {}
        return {
            "state": found.state.name.replace("_", " ").lower(),
            "since": found.updated_ms,
            "partitions": len(found.partitions),
        }
