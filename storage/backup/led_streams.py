"""The streams of a copy as a standby leads them: rows of a checkpoint are looked at on demand, and
of the changes since then only those that are new.

A copy of ten thousand partitions moves on each second. So nothing here is done for each of them
that makes its state a value.
"""

from dataclasses import replace

from immutables import Map

from lakehead.storage.metadata.checkpoints import StreamRows
from lakehead.storage.metadata.state import MetadataImage, StreamState
from lakehead.storage.metadata.table import Rows, Table

Head = tuple[int, int]
"""The epoch of a stream, and the end of what is in objects."""


class LedRows:
    """Rows of streams, each of them open on one node. A value is made at its first use."""

    __slots__ = ("_made", "_node_id", "rows")

    def __init__(self, rows: Rows[int, StreamState], node_id: int) -> None:
        self.rows = rows
        self._node_id = node_id
        self._made: dict[int, StreamState] = {}

    def __len__(self) -> int:
        return len(self.rows)

    def find(self, key: int) -> int:
        """See `Rows.find`."""
        return self.rows.find(key)

    def key(self, row: int) -> int:
        """See `Rows.key`."""
        return self.rows.key(row)

    def value(self, row: int) -> StreamState:
        """See `Rows.value`."""
        made = self._made.get(row)
        if made is None:
            made = self._made[row] = led(self.rows.value(row), self._node_id)
        return made


class LedStreams:
    """The streams of one state after the other, as node `node_id` leads them."""

    def __init__(self, node_id: int) -> None:
        self._node_id = node_id
        self._source: Table[int, StreamState] = Table()
        self._led: Table[int, StreamState] = Table()
        self._waiting: frozenset[int] = frozenset()

    def of(self, state: MetadataImage) -> Table[int, StreamState]:
        """Return the streams of a state. A stream ends before records that lie in the log of a dead
        node: they are in the copy once they are uploaded.
        """
        source, before, rows = state.streams, self._source, state.streams.rows
        changes: Map[int, StreamState | None]
        if rows is before.rows and not self._waiting:
            known, changes, led_rows = before.changes, self._led.changes, self._led.rows
        else:
            known, changes = Map(), Map()
            led_rows = None if rows is None else LedRows(rows, self._node_id)
        changed = [
            (stream_id, stream if stream is None else led(stream, self._node_id))
            for stream_id, stream in source.changes.items()
            if stream_id not in known or known[stream_id] is not stream
        ]
        gone = [stream_id for stream_id in known if stream_id not in source.changes]
        with changes.mutate() as changing:
            changing.update(changed)
            for stream_id in gone:
                changing.pop(stream_id)
            changes = changing.finish()
        self._source, self._led = source, Table(led_rows, changes, len(source))
        self._waiting = frozenset(state.places_in(state.tails) if state.tails else ())
        return self._led.update(
            [
                (one, led(uploaded_part(state, state.stream(one)), self._node_id))
                for one in self._waiting
            ]
        )


def led(stream: StreamState, node_id: int) -> StreamState:
    """Return a stream as it is open on a node, which is to keep it."""
    return replace(
        stream,
        epoch=max(stream.epoch, 0),
        node_id=node_id,
        assigned=node_id,
        preferred=node_id,
        is_open=True,
    )


def uploaded_part(state: MetadataImage, stream: StreamState) -> StreamState:
    """Return a stream up to the first record that lies in the log of a dead node."""
    end = max(state.uploaded_end(stream), stream.start_offset)
    return replace(
        stream,
        end_offset=end,
        extents=state.uploaded_extents(stream),
        epochs=tuple(one for one in stream.epochs if one[1] <= end),
    )


def stream_heads(streams: Table[int, StreamState]) -> dict[int, Head]:
    """Return the heads of streams by id."""
    rows, heads = streams.rows, dict[int, Head]()
    if isinstance(rows, LedRows):
        rows = rows.rows
    if isinstance(rows, StreamRows):
        columns = zip(rows.stream_epochs.values, rows.end_offsets.values, strict=True)
        heads = dict(zip(rows.stream_ids.values, columns, strict=True))
    for stream_id, stream in streams.changes.items():
        if stream is None:
            heads.pop(stream_id, None)
        else:
            heads[stream_id] = (stream.epoch, stream.end_offset)
    return heads
