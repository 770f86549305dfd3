"""Draws fetches in sessions: full, incremental, out of turn, of partitions that are forgotten."""

from typing import Any

from tests.differential.brokers import LeaderEpoch, Request, SessionEpoch, SessionId, TopicId
from tests.differential.chances import Chances

_SESSIONS_SINCE, _TOPIC_IDS_SINCE = 7, 13


def _wanted(c: Chances, name: str, index: int) -> dict[str, Any]:
    return {
        "partition": index,
        "current_leader_epoch": c.mostly(-1, LeaderEpoch(name, index), rarity=0.3),
        "fetch_offset": c.mostly(0, 1, 2, 5, -1, 10_000, rarity=0.4),
        "last_fetched_epoch": -1,
        "log_start_offset": -1,
        "partition_max_bytes": 1 << 20,
    }


def fetch_in_session(c: Chances) -> Request:
    name = c.rng.choice(c.sessions)
    version = c.version(1, least=_SESSIONS_SINCE)
    if name == c.sessions[0]:
        version = max(version, _TOPIC_IDS_SINCE)
    elif c.rng.random() < 0.9:
        version = min(version, _TOPIC_IDS_SINCE - 1)
    session: tuple[Any, Any] = (SessionId(name), SessionEpoch(name))
    is_full = c.rng.random() < 0.25
    if is_full:
        session = c.mostly((0, 0), (SessionId(name), 0), (12_345, 0), rarity=0.4)
    elif c.rng.random() < 0.2:
        odd = (SessionId(name, 1), SessionEpoch(name)), (SessionId(name), SessionEpoch(name, 1))
        session = c.rng.choice([(SessionId(name), -1), (SessionId(name), SessionEpoch(name, -1))])
        session = c.mostly(session, *odd, rarity=0.5)
    added = c.topics() if is_full or c.rng.random() < 0.4 else []
    forgotten = [] if is_full or c.rng.random() < 0.7 else c.topics()
    tree = {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 24,
        "isolation_level": c.mostly(0, 1, rarity=0.5),
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": [
            {
                "topic": topic,
                "topic_id": TopicId(topic),
                "partitions": [_wanted(c, topic, index) for index in c.partitions(topic)],
            }
            for topic in added
        ],
        "forgotten_topics_data": [
            {"topic": topic, "topic_id": TopicId(topic), "partitions": c.partitions(topic)}
            for topic in forgotten
        ],
        "rack_id": "",
    }
    return Request(key=1, version=version, tree=tree, about=name)


DRAWS = (fetch_in_session,) * 4
