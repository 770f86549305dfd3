"""Due tables: declared tables that lag behind their freshness, by the metadata alone. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from lakehead.lake.catalog import Catalog
from lakehead.lake.declaration.table_declaration import TableDeclaration
from lakehead.storage.errors import SettingsError
from lakehead.storage.metadata.state import MetadataImage, StreamState, TopicState

_CLOCKS_APART_MS = 5000
"""Less than that clocks differ in a cluster that works."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """The lag of a table: records of its topic that lie in objects and not in the table.
    `oldest_ms` is the time when the oldest of them came into an object, -1 without any; bytes are
    those of whole objects.
    """

    records: int = 0
    size_bytes: int = 0
    oldest_ms: int = -1

    def seconds(self, now_ms: int) -> float:
        """Return how old the oldest of it is."""
        return 0.0 if self.oldest_ms < 0 else max(0, now_ms - self.oldest_ms) / 1000


def lag_of(state: MetadataImage, topic: TopicState, offsets: Sequence[int]) -> Lag:
    """Return how far a table is behind that holds what lies below `offsets` of each partition."""
    records = size_bytes = 0
    oldest_ms = -1
    for stream_id in topic.partitions:
        stream = state.streams.get(stream_id)
        if stream is None:
            continue
        held = offsets[stream.partition] if stream.partition < len(offsets) else 0
        start = max(held, stream.start_offset)
        if start >= stream.end_offset:
            continue
        records += stream.end_offset - start
        size, first_ms = _beyond(state, stream, start)
        size_bytes += size
        oldest_ms = first_ms if oldest_ms < 0 else min(oldest_ms, first_ms)
    return Lag(records=records, size_bytes=size_bytes, oldest_ms=oldest_ms)


def _beyond(state: MetadataImage, stream: StreamState, start: int) -> tuple[int, int]:
    """Bytes of the extents that reach beyond an offset, and when the first of them was made."""
    size, first_ms = 0, 0
    for extent in reversed(stream.extents):  # a table is mostly near the end
        if extent.end_offset <= start:
            break
        size += extent.size
        first_ms = state.objects[extent.object_key].created_ms
    return size, first_ms


class LogLost(SettingsError):
    """The table holds more of a partition than the topic's log ever had, as the metadata say."""


def check_ends(state: MetadataImage, topic: TopicState, table: str, offsets: Sequence[int]) -> None:
    """Raise LogLost if the table at `table`, which holds what lies below `offsets`, has more than
    the topic: the log's end was lost, and other records have its offsets now, or will.

    A table can be ahead of objects by what it has read from object WALs; so the partitions of nodes
    with one are not judged.
    """
    for stream_id in topic.partitions:
        stream = state.streams.get(stream_id)
        if stream is None or stream.partition >= len(offsets):
            continue
        node = state.nodes.get(stream.node_id)
        has_tail = stream.is_open and node is not None and node.wal.startswith("object:")
        if offsets[stream.partition] > stream.end_offset and not has_tail:
            raise LogLost(
                f"{table} holds partition {stream.partition} of topic {topic.name} up to offset "
                f"{offsets[stream.partition] - 1}, and the topic ends at {stream.end_offset}: the "
                "end of its log was lost, and its offsets are given to other records. To rebuild "
                "the table from the topic: lakehead rebuild-table "
                f"{topic.name} --without-history; to keep it: name another place "
                "(lakehead.table.path, or --table)"
            )


def is_due(declared: TableDeclaration, lag: Lag, now_ms: int) -> bool:
    """Return whether a table is due: from half of its freshness on, so that it is done in time, or
    with enough records for a file. So is one whose records came later than now, by clocks that do
    not agree: it would wait for as long as they are apart.
    """
    if lag.oldest_ms < 0:
        return False
    if lag.oldest_ms > now_ms + _CLOCKS_APART_MS:
        return True
    return lag.seconds(now_ms) * 2000 >= declared.freshness_ms or (
        lag.size_bytes >= declared.file_bytes
    )


def declared_tables(
    state: MetadataImage, tables: Sequence[str] = ()
) -> dict[str, TableDeclaration | SettingsError]:
    """Return the declarations of all tables, by their keys (`TableDeclaration.key`), or of those
    among them that `tables` name: each a key, or a topic for all of its tables. In place of the
    invalid declaration of a topic (set by another release) is its error.
    """
    found: dict[str, TableDeclaration | SettingsError] = {}
    for name, topic in sorted(state.topics.items()):
        if not topic.declares_table or (tables and name not in map(topic_of, tables)):
            continue
        try:
            each = {one.key: one for one in TableDeclaration.each_of(topic)}
        except SettingsError as error:
            found[name] = SettingsError(f"topic {name}: {error}")
            continue
        found |= {
            key: one for key, one in each.items() if not tables or name in tables or key in tables
        }
    return found


def one_table(state: MetadataImage, table: str) -> TableDeclaration | None:
    """Return the table with a key, or the only one of a topic; None if it is not declared. Raises
    SettingsError for a declaration that cannot be, and for a topic of several tables.
    """
    found = declared_tables(state, [table])
    if len(found) > 1:
        raise SettingsError(f"topic {table} has several tables, name one: {', '.join(found)}")
    for one in found.values():
        if isinstance(one, SettingsError):
            raise one
        return one
    return None


def topic_of(table: str) -> str:
    """Return the topic of a table by its key, TOPIC or TOPIC/TABLE."""
    return table.partition("/")[0]


def chosen_tables(
    catalog: Catalog, tables: Sequence[str]
) -> dict[str, TableDeclaration | SettingsError]:
    """Return the same as `declared_tables`. Raises UnknownTopic, and SettingsError for one of
    `tables` that is not declared.
    """
    declared = declared_tables(catalog.state, tables)
    for one in tables:
        topic = catalog.topic(topic_of(one))
        if one in declared or any(topic_of(key) == one for key in declared):
            continue
        if not topic.declares_table:
            raise SettingsError(
                f"topic {topic.name} declares no table: set lakehead.table.enable=true"
            )
        names = ", ".join(declared_tables(catalog.state, [topic.name]))
        raise SettingsError(f"topic {topic.name} declares no table {one}, but: {names}")
    return declared
