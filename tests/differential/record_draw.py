"""Draws requests about records: written, read, deleted, and where they are."""

from typing import Any

from lakehead.storage.format.record_batch import TRANSACTIONAL
from tests.differential.brokers import LeaderEpoch, Records, Request, TopicId
from tests.differential.chances import Chances

_BASE_MS = 1_700_000_000_000


def _records(c: Chances, topic: str, index: int, producer: str | None) -> Records:
    fields: dict[str, Any] = {
        "values": (b"v" * c.mostly(5, 200),) * c.rng.choice([1, 1, 2, 5]),
        "timestamp": _BASE_MS + 1000 * c.mostly(c.rng.randrange(50), -(10**9) - 1, rarity=0.05),
        "attributes": 0,
    }
    if c.rng.random() < 0.05:
        odd: list[dict[str, Any]] = [
            {"crc": 1},
            {"magic": 1},
            {"magic": 3},
            {"record_count": 0},
            {"record_count": 9},
            {"last_offset_delta": 7},
            {"base_offset": 44},
            {"length": 10},
            {"attributes": 0x20},
            {"attributes": 5},
            {"timestamp": 9_700_000_000_000},
            {"values": ()},
            {"values": (b"x" * 1_100_000,)},
            {"body": b""},
        ]
        fields |= c.rng.choice(odd)
    if producer is None:
        return Records(None, 0, tuple(fields.items()))
    at = c.sequences.get((producer, topic, index), 0)
    fields["base_sequence"] = c.mostly(at, at - 1, at + 1, 0, 1, -1, rarity=0.25)
    if c.is_transactional(producer):
        fields["attributes"] |= c.mostly(TRANSACTIONAL, 0)
    return Records(producer, c.mostly(0, -1, 1), tuple(fields.items()))


def produce(c: Chances) -> Request:
    version = c.version(0)
    producer = c.rng.choice([None, *c.producers])
    topics: list[dict[str, Any]] = []
    for name in c.topics():
        parts = [
            {"index": i, "records": c.mostly(_records(c, name, i, producer), None, rarity=0.01)}
            for i in c.partitions(name)
        ]
        topics.append({"name": name, "topic_id": TopicId(name), "partition_data": parts})
    usual_id = producer if producer is not None and c.is_transactional(producer) else None
    given_id = c.mostly(usual_id, None, "nobody", rarity=0.05)
    acks = c.mostly(c.mostly(-1, 1, 0), 2, -2, rarity=0.03)
    tree = {
        "transactional_id": given_id,
        "acks": acks,
        "timeout": 5000,
        "topic_data": topics,
    }
    return Request(key=0, version=version, tree=tree)


def fetch(c: Chances) -> Request:
    version = c.version(1)
    topics = [
        {
            "topic": name,
            "topic_id": TopicId(name),
            "partitions": [
                {
                    "partition": index,
                    "current_leader_epoch": c.mostly(-1, 1_000_000, rarity=0.05),
                    "fetch_offset": c.mostly(0, 1, 2, 5, -1, 10_000, rarity=0.5),
                    "last_fetched_epoch": -1,
                    "log_start_offset": -1,
                    "partition_max_bytes": 1 << 20,
                }
                for index in c.partitions(name)
            ],
        }
        for name in c.topics()
    ]
    session = c.mostly((0, -1), (12_345, 1), (0, 1), (12_345, -1), rarity=0.06)
    tree = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 24,
        "isolation_level": c.mostly(0, 1, 2, rarity=0.5),
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": topics,
        "rack_id": "",
    }
    return Request(key=1, version=version, tree=tree)


def list_offsets(c: Chances) -> Request:
    times = (-1, -2, -3, -4, -5, -6, -7, 0, _BASE_MS, _BASE_MS + 25_000, 2**62)
    topics = [
        {
            "name": name,
            "partitions": [
                {
                    "partition_index": index,
                    "current_leader_epoch": c.mostly(-1, 1_000_000, rarity=0.05),
                    "timestamp": c.rng.choice(times),
                }
                for index in c.partitions(name)
            ],
        }
        for name in c.topics()
    ]
    level = c.mostly(0, 1, 2, rarity=0.4)
    tree = {"replica_id": -1, "isolation_level": level, "topics": topics, "timeout": 3000}
    return c.request(2, tree)


def leader_epochs(c: Chances) -> Request:
    topics = [
        {
            "topic": name,
            "partitions": [
                {
                    "partition": index,
                    "current_leader_epoch": c.mostly(
                        *(-1, 1_000_000, LeaderEpoch(name, index)), rarity=0.2
                    ),
                    "leader_epoch": c.rng.choice(
                        [-1, 1_000_000, LeaderEpoch(name, index), LeaderEpoch(name, index, 1), -2]
                    ),
                }
                for index in c.partitions(name)
            ],
        }
        for name in c.topics()
    ]
    return c.request(23, {"replica_id": c.mostly(-1, -2), "topics": topics})


def delete_records(c: Chances) -> Request:
    topics = [
        {
            "name": name,
            "partitions": [
                {"partition_index": index, "offset": c.rng.choice([0, 1, 2, -1, -2, 10_000])}
                for index in c.partitions(name)
            ],
        }
        for name in c.topics()
    ]
    return c.request(21, {"topics": topics, "timeout": 5000})


def describe_producers(c: Chances) -> Request:
    topics = [{"name": name, "partition_indexes": c.partitions(name)} for name in c.topics()]
    return c.request(61, {"topics": topics})


DRAWS = (
    *(produce,) * 8,
    *(fetch,) * 3,
    *(list_offsets, list_offsets, leader_epochs, delete_records, describe_producers),
)
