"""Draws fetches with small limits, and with epochs that the log has, had or will have."""

from typing import Any

from tests.differential import record_draw, topic_draw, transaction_draw
from tests.differential.brokers import LeaderEpoch, Request, TopicId
from tests.differential.chances import Chances

_PARTITION_BYTES = (0, 1, 70, 150, 300, 600, 1 << 20)
_BYTES = (0, 1, 70, 150, 300, 600, 1 << 24)
"""Batches have from 75 bytes on: some fit, some do not."""


def _partition(c: Chances, topic: str, index: int) -> dict[str, Any]:
    present, next_one = LeaderEpoch(topic, index), LeaderEpoch(topic, index, 1)
    before = LeaderEpoch(topic, index, -1)
    return {
        "partition": index,
        "current_leader_epoch": c.mostly(-1, present, before, rarity=0.2),
        "fetch_offset": c.mostly(0, 1, 2, 3, 5, 8, 10_000, -1, rarity=0.6),
        "last_fetched_epoch": c.mostly(-1, present, next_one, before, 0, rarity=0.5),
        "log_start_offset": -1,
        "partition_max_bytes": c.rng.choice(_PARTITION_BYTES),
    }


def fetch_within_limits(c: Chances) -> Request:
    version = c.version(1)
    topics = [
        {
            "topic": name,
            "topic_id": TopicId(name),
            "partitions": [_partition(c, name, index) for index in c.partitions(name)],
        }
        for name in c.topics()
    ]
    tree = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": c.rng.choice([0, 1, 100, 1 << 30]),
        "max_bytes": c.rng.choice(_BYTES),
        "isolation_level": c.mostly(0, 1, rarity=0.5),
        "session_id": 0,
        "session_epoch": -1,
        "topics": topics,
        "forgotten_topics_data": [],
        "rack_id": c.mostly("", "r"),
    }
    return Request(key=1, version=version, tree=tree)


DRAWS = (
    *(fetch_within_limits,) * 8,
    *(record_draw.produce,) * 6,
    *(record_draw.delete_records, topic_draw.create_topics, topic_draw.delete_topics),
    *transaction_draw.DRAWS,
)
