"""The pages of jobs and of connectors: what a cluster knows of work that other processes do.

A job leaves its commits in the metadata log, under a name with its kind in front. A connector
leaves positions in a topic, and its transactions. Their output stays where they run.
"""

from collections.abc import Iterable, Iterator
from typing import Any

from lakehead.broker.console.page_request import Reply, Request
from lakehead.broker.console.renderer import Renderer
from lakehead.broker.console.viewer import Viewer
from lakehead.broker.diagnosis.metadata_log import public_entry, record_counts
from lakehead.broker.maintenance.beside import is_lowest
from lakehead.broker.protocol.errors import KafkaError
from lakehead.storage.errors import NotFound, StorageError
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.plain_text import moment

_KINDS_MAX = 20
CONNECTOR = "lakehead-connect-"
"""The beginning of a connector's topic of positions, and of its transactional id."""
DEAD_LETTERS = ".dead-letters"
_SHOWN_MAX = 200


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


class JobPages:
    """Makes the pages."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._node = renderer.node

    def jobs(self, request: Request) -> Reply:
        """Return the maintenance of this node, and the last commit of each kind of job."""
        self._renderer.require(request.viewer.sees_cluster, "describe the cluster")
        node = self._node
        maintenance, tables = node.maintenance, node.tables
        return self._renderer.render(
            "jobs.html",
            node_id=node.services.node_id,
            is_lowest=is_lowest(node.state, node.services.node_id),
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
        )

    async def _commits(self) -> list[dict[str, Any]]:
        store = self._node.engine.metadata.store
        rows = []
        for kind, name, number in last_writers(self._node.state):
            row = {"kind": kind, "process": name, "number": number, "time": "", "records": ""}
            try:
                entry = await public_entry(store, number)
                row["time"] = moment(entry.get("time_ms", -1))
                row["records"] = record_counts(entry.get("records", ()))
            except (NotFound, StorageError):  # a checkpoint has its records
                pass
            rows.append(row)
        return rows

    def connectors(self, request: Request) -> Reply:
        """Return the connectors that the viewer sees, and the topics of records that they could not
        use.
        """
        topics = self._node.state.topics
        names = [one for one in topics if one.startswith(CONNECTOR) or one.endswith(DEAD_LETTERS)]
        seen = sorted(self._renderer.seen(request.viewer, names))[:_SHOWN_MAX]
        found = [one for one in seen if one.startswith(CONNECTOR)]
        return self._renderer.render(
            "connectors.html",
            connectors=self._renderer.on_loop(self._connectors(request.viewer, found)),
            dead_letters=list(self._counted(one for one in seen if one.endswith(DEAD_LETTERS))),
            nodes=sum(not one.is_fenced for one in self._node.state.nodes.values()),
        )

    def _counted(self, names: Iterable[str]) -> Iterator[dict[str, Any]]:
        """Yield topics with the number of offsets that they have in objects."""
        state = self._node.state
        for name in names:
            streams = [state.streams[one] for one in state.topics[name].partitions]
            count = sum(stream.end_offset - stream.start_offset for stream in streams)
            newest = max(
                (extent.max_timestamp for stream in streams for extent in stream.extents),
                default=-1,
            )
            yield {"topic": name, "count": count, "newest": moment(newest)}

    async def _connectors(self, viewer: Viewer, names: Iterable[str]) -> list[dict[str, Any]]:
        rows = []
        for row in self._counted(names):
            shown = {**row, "name": row["topic"].removeprefix(CONNECTOR), "state": "", "since": ""}
            if viewer.sees_transactional_id(row["topic"]):
                shown |= await self._transaction(row["topic"])
            rows.append(shown)
        return rows

    async def _transaction(self, name: str) -> dict[str, Any]:
        """Return the state of a connector's transactional id, where this node coordinates it."""
        try:
            found = await self._node.transaction_coordinator.describe(name)
        except KafkaError:
            return {}
        return {
            "state": found.state.name.replace("_", " ").lower(),
            "since": moment(found.updated_ms),
            "partitions": len(found.partitions),
        }
