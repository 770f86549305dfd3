"""A partition: the node that leads it, the place of its data, and each thing that it waits for."""

from collections.abc import Collection
from dataclasses import dataclass

from lakehead.storage.errors import NotFound
from lakehead.storage.metadata.state import MetadataImage, NodeState, StreamState, TopicState
from lakehead.storage.plain_text import address_text

EPOCHS_SHOWN = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """A partition as the metadata has it. `leader` is None if no node leads it now. Offsets and
    bytes are those of objects: the leader has later records in its write-ahead log. `epochs`: the
    newest leader epochs with the first offset of each. `table_end` is the offset below which its
    declared table has every record, None without a table. `waits`: the reasons for which it, or its
    table, does not go on, one line each.
    """

    topic: str
    partition: int
    stream_id: int
    leader: int | None
    leader_epoch: int
    assigned: int | None
    preferred: int | None
    start_offset: int
    end_offset: int
    epochs: tuple[tuple[int, int], ...]
    objects: int
    bytes: int
    oldest_object: str | None
    newest_object: str | None
    log: str | None
    table_end: int | None
    waits: tuple[str, ...]


def find_partition(state: MetadataImage, name: str) -> tuple[TopicState, StreamState]:
    """Return the partition that `name` means: TOPIC-PARTITION, as Kafka writes it. Raises
    NotFound.
    """
    topic_name, dash, number = name.rpartition("-")
    topic = state.topics.get(topic_name)
    if topic is None or not dash or not number.isdecimal():
        if name in state.topics:
            raise NotFound(f"{name} is a topic: give a partition of it, like {name}-0")
        raise NotFound(
            f"there is no partition {name!r}: give TOPIC-PARTITION, like orders-0; "
            "see: lakehead topics list"
        )
    if int(number) >= len(topic.partitions):
        most = len(topic.partitions) - 1
        raise NotFound(f"topic {topic_name} has partitions 0 to {most}, and not {number}")
    return topic, state.streams[topic.partitions[int(number)]]


def explain(
    state: MetadataImage,
    topic: TopicState,
    stream: StreamState,
    responding: Collection[int] | None,
) -> PartitionFacts:
    """Return the facts of a partition. `responding`: ids of the nodes that responded to a
    heartbeat; None: heartbeats cannot be sent from here.
    """
    extents = tuple(stream.extents)
    opener = state.nodes.get(stream.node_id) if stream.is_open else None
    leads = opener is not None and not opener.is_fenced
    table_end = None
    if topic.declares_table:
        table = state.tables.get(topic.topic_id)
        table_end = 0 if table is None else table.end_offset(stream.partition)
    return PartitionFacts(
        topic=topic.name,
        partition=stream.partition,
        stream_id=stream.stream_id,
        leader=stream.node_id if leads else None,
        leader_epoch=stream.epoch,
        assigned=stream.assigned if stream.assigned >= 0 else None,
        preferred=stream.preferred if stream.preferred >= 0 else None,
        start_offset=stream.start_offset,
        end_offset=stream.end_offset,
        epochs=stream.epochs[-EPOCHS_SHOWN:],
        objects=len({extent.object_key for extent in extents}),
        bytes=sum(extent.size for extent in extents),
        oldest_object=extents[0].object_key if extents else None,
        newest_object=extents[-1].object_key if extents else None,
        log=(opener.wal or None) if opener is not None else None,
        table_end=table_end,
        waits=(
            *_leader_waits(state, stream, opener, responding),
            *_table_waits(state, topic, stream, table_end),
        ),
    )


def _leader_waits(
    state: MetadataImage,
    stream: StreamState,
    opener: NodeState | None,
    responding: Collection[int] | None,
) -> list[str]:
    live = state.live_node_ids
    if opener is not None and opener.is_fenced and not opener.is_recovered:
        machine = f"its machine {opener.host_id}" if opener.host_id else "its machine"
        reason = (
            f"its leader, node {opener.node_id}, has ended, and its write-ahead log is not "
            f"recovered yet: a live node of {machine} does that, or an operator gives the log up "
            "with accept.log.loss"
        )
        return [reason]
    if not live:
        return ["no node of the cluster is live: start one"]
    waits = []
    if opener is None or opener.is_fenced:
        to = f"node {stream.assigned}" if stream.assigned >= 0 else "any node"
        waits.append(f"no node has it open: {to} is to open it")
    elif responding is not None and opener.node_id not in responding:
        waits.append(
            f"its leader, node {opener.node_id} at "
            f"{address_text(opener.host, opener.port)}, does not respond: "
            "others fence it when its session has expired"
        )
    elif stream.assigned not in (-1, opener.node_id):
        waits.append(f"it moves from node {opener.node_id} to node {stream.assigned}")
    elif opener.is_draining:
        waits.append(f"its leader, node {opener.node_id}, is draining: it moves to another node")
    if stream.assigned >= 0 and stream.assigned not in live:
        waits.append(
            f"it is assigned to node {stream.assigned}, and that node is not live: the controller "
            "assigns it to another"
        )
    return waits


def _table_waits(
    state: MetadataImage, topic: TopicState, stream: StreamState, table_end: int | None
) -> list[str]:
    if table_end is None:
        return []
    table = state.tables.get(topic.topic_id)
    waits = []
    if table is not None and table.problem:
        waits.append(f"its table has a problem: {table.problem}")
    behind = stream.end_offset - max(table_end, stream.start_offset)
    if behind > 0:
        waits.append(
            f"its table lacks the newest {behind} offsets that are in objects; retention waits "
            "for it"
        )
    return waits
