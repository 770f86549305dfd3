"""The metadata of a restored cluster, made from those of a backup.

It is a new incarnation of the same cluster: the same cluster id, topics, offsets, groups, rights
and configs. Everything that a process of the lost cluster may still do ends here:

- Its nodes are fenced and recovered, and their next epochs are far beyond those that the lost
  cluster may have reached since. So no name of an object is used twice, even where both clusters
  write, and a node with the same id starts without its old write-ahead log. The same holds for a
  node that was new after the state, of which there are objects at the place: it counts as retired.
- The secret by which nodes recognise each other is a new one.
- Inherited tails that were not uploaded are lost with the logs that hold them.
- Streams are closed, and their next epochs are far beyond too. By the leader epoch a client notices
  that records which it has seen are gone (KIP-320).
- Producer ids that the lost cluster may have given out since are not given out again.
- The leases of tables are over, and no record counts as being in a table before the table says so
  itself.
"""

from collections.abc import Iterable
from dataclasses import replace

from immutables import Map

from lakehead.storage.format.feature_level import NEWEST_LEVEL
from lakehead.storage.format.object_names import DataName
from lakehead.storage.metadata.records import DropObjects
from lakehead.storage.metadata.rules import apply_records, end_tails
from lakehead.storage.metadata.state import (
    ControllerState,
    KnownLog,
    LostLog,
    MetadataImage,
    NodeState,
    StreamState,
)
from lakehead.storage.wal.object import WalName

ENTRIES_STEP = 1_000_000
"""The restored log goes on this many entries later: what a job of the lost cluster has written, and
not committed, is garbage by then.
"""
NODE_EPOCHS_STEP = 1_000_000
STREAM_EPOCHS_STEP = 1_000
PRODUCER_IDS_STEP = 1_000_000_000


def restored_state(
    state: MetadataImage, *, keys: Iterable[str], node_secret: str, time_ms: int
) -> MetadataImage:
    """Return the metadata with which the restored cluster begins. `state` has the tails of
    write-ahead logs as committed objects; `keys` are those of the objects at the cluster's place;
    `time_ms` is now, milliseconds since the epoch.
    """
    if state.unreferenced:  # they were not copied
        dropped = DropObjects(keys=tuple(state.unreferenced_objects()))
        state = apply_records(state, [dropped], time_ms)
    state = end_tails(state, sorted(state.tails))
    number = state.next_entry + ENTRIES_STEP
    open_streams: dict[int, int] = {}
    for stream in state.streams.values():
        if stream.is_open:
            open_streams[stream.node_id] = open_streams.get(stream.node_id, 0) + 1
    nodes = {
        node.node_id: _node(node, open_streams.get(node.node_id, 0), time_ms)
        for node in state.nodes.values()
    }
    return replace(
        state,
        next_entry=number,
        nodes=Map(nodes),
        retired_nodes=Map(
            {one: epoch + NODE_EPOCHS_STEP for one, epoch in _gone_nodes(state, keys).items()}
        ),
        streams=state.streams.update(
            [(stream.stream_id, _stream(stream)) for stream in state.streams.values()]
        ),
        controller=ControllerState(term=state.controller.term),
        tables=Map(),
        next_producer_id=state.next_producer_id + PRODUCER_IDS_STEP,
        node_secret=node_secret if state.metadata_version >= NEWEST_LEVEL else "",
    )


def _gone_nodes(state: MetadataImage, keys: Iterable[str]) -> dict[int, int]:
    """Return the last epochs of nodes that were retired, and of those that only names know."""
    epochs = dict(state.retired_nodes)
    for key in keys:
        name = DataName.parse(key) or WalName.parse(key)
        if name is not None and name.node_id not in state.nodes:
            epochs[name.node_id] = max(name.epoch, epochs.get(name.node_id, -1))
    return epochs


def _node(node: NodeState, open_streams: int, time_ms: int) -> NodeState:
    """Return a node as fenced and recovered: nothing of its former log is needed."""
    lost = node.lost_log
    if node.log.log_id and open_streams:
        lost = LostLog(
            log_id=node.log.log_id, epoch=node.log.epoch, time_ms=time_ms, streams=open_streams
        )
    epoch = node.epoch + NODE_EPOCHS_STEP
    return replace(
        node,
        epoch=epoch,
        is_fenced=True,
        wal_epoch=epoch + 1,
        wal_floor=0,
        wal="",
        process="",
        log=KnownLog(),
        lost_log=lost,
    )


def _stream(stream: StreamState) -> StreamState:
    if stream.epoch < 0:
        return stream
    return replace(stream, epoch=stream.epoch + STREAM_EPOCHS_STEP, is_open=False)
