"""What the metadata log asks of a node for its streams: pure.

Life of a leadership: `AssignStreams` says who is to lead. Who has the stream open hands it over and
closes it; then, and only then, the assigned node opens it, under the next epoch. What a dead node
had open may be opened once its WAL is recovered.
"""

from enum import Enum, auto
from typing import NamedTuple

from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.records import Entry
from lakehead.storage.metadata.state import ClusterState, StreamState


class Duty(Enum):
    """What a node has to do about one stream."""

    NOTHING = auto()
    OPEN = auto()
    HAND_OVER = auto()
    """This node, or an earlier life of it, has it open, and another is to lead it."""
    WAIT = auto()
    """For news of nodes: a node died, came back, or its WAL was recovered."""


class News(NamedTuple):
    """What an entry is about. `is_everything`: look at all there is."""

    topic_ids: frozenset[str]
    stream_ids: frozenset[int]
    is_of_nodes: bool
    is_everything: bool


EVERYTHING = News(frozenset(), frozenset(), is_of_nodes=True, is_everything=True)


def news_of(entry: Entry | None) -> News:
    """Return what an entry is about; None: the state was read from a checkpoint."""
    if entry is None:
        return EVERYTHING
    topic_ids: set[str] = set()
    stream_ids: set[int] = set()
    is_of_nodes = False
    for record in entry.records:
        match record:
            case r.CreateTopic() | r.DeleteTopic() | r.TopicConfig():
                topic_ids.add(record.topic_id)
            case r.BrokerConfig():
                return EVERYTHING  # defaults of every topic
            case r.CreateStream():
                topic_ids.add(record.topic_id)
                stream_ids.add(record.stream_id)
            case r.AssignStreams():
                stream_ids.update(record.stream_ids)
            case r.OpenStream() | r.CloseStream() | r.DeleteStream():
                stream_ids.add(record.stream_id)
            case r.RegisterNode() | r.FenceNode() | r.RetireNode():
                is_of_nodes = True
            case r.CommitObjects():
                is_of_nodes = is_of_nodes or record.taker_id >= 0
            case _:
                pass
    return News(frozenset(topic_ids), frozenset(stream_ids), is_of_nodes, is_everything=False)


def duty_of(state: ClusterState, stream: StreamState, node_id: int, *, is_held: bool) -> Duty:
    """Return what node `node_id` has to do. `is_held`: it has the stream open in this life."""
    if is_held:
        if stream.assigned in {-1, node_id}:
            return Duty.NOTHING
        target = state.nodes.get(stream.assigned)
        # Nobody is served by giving it to a node that cannot open it.
        return Duty.WAIT if target is None or target.is_fenced else Duty.HAND_OVER
    was_here = stream.node_id == node_id
    is_mine = stream.assigned == node_id or (stream.assigned == -1 and was_here)
    if stream.is_open and was_here:
        return Duty.OPEN if is_mine else Duty.HAND_OVER
    if not is_mine:
        return Duty.NOTHING
    owner = state.nodes.get(stream.node_id)
    if stream.is_open and owner is not None and not owner.is_recovered:
        return Duty.WAIT
    return Duty.OPEN
