"""The rules of tables that topics are kept as: who writes one, and how far it got.

Time decides nothing here: whether a lease has run out is for its next taker to judge, and the term
says who was last. So a holder that slept has no word any more.
"""

from dataclasses import replace

from lakehead.storage.errors import UnknownTopic
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.demands import require
from lakehead.storage.metadata.state import ClusterState, TableState, TopicState


def take_table(state: ClusterState, record: r.TakeTable, _: int) -> ClusterState:
    """Give a table's lease to a holder, again or anew, or back to nobody."""
    _topic(state, record.topic_id)
    held = state.tables.get(record.topic_id, TableState())
    require(record.term == held.term + 1, f"table term {record.term} after {held.term}")
    require(bool(record.holder) and record.until_ms >= 0, "a table's lease without a holder")
    taken = replace(held, holder=record.holder, term=record.term, until_ms=record.until_ms)
    return replace(state, tables=state.tables.set(record.topic_id, taken))


def table_progress(state: ClusterState, record: r.TableProgress, _: int) -> ClusterState:
    """Say what a table holds; only who has its lease knows."""
    topic = _topic(state, record.topic_id)
    held = state.tables.get(record.topic_id)
    require(
        held is not None and held.term == record.term and held.until_ms > 0,
        f"term {record.term} of the table of topic {topic.name} has passed, or never was",
    )
    assert held is not None
    require(
        len(record.offsets) <= len(topic.partitions) and all(n >= 0 for n in record.offsets),
        f"progress of {len(record.offsets)} partitions of topic {topic.name}, or below offset 0",
    )
    held = replace(held, offsets=record.offsets, problem=record.problem)
    return replace(state, tables=state.tables.set(record.topic_id, held))


def _topic(state: ClusterState, topic_id: str) -> TopicState:
    topic = state.topic_by_id(topic_id)
    if topic is None:
        raise UnknownTopic(f"no topic with id {topic_id}")
    return topic
