"""What brokers do to topics, done in a cluster's metadata log without one."""

import asyncio
import random
from collections.abc import Callable, Mapping
from pathlib import Path

from lakehead.storage.clock import SystemClock
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import DeleteTopic, Record, TopicConfig, TrimStream
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import FileStore


def configure(root: Path, topic: str, configs: Mapping[str, str | None]) -> None:
    """Set configs of a topic; None removes one."""

    _commit(
        root,
        lambda state: [TopicConfig(topic_id=state.topics[topic].topic_id, configs=dict(configs))],
    )


def delete_topic(root: Path, topic: str) -> None:
    """Delete a topic; one of its name has another id."""
    _commit(root, lambda state: [DeleteTopic(topic_id=state.topics[topic].topic_id)])


def trim(root: Path, topic: str, partition: int, start_offset: int) -> None:
    """Remove a partition's oldest records."""
    _commit(
        root,
        lambda state: [
            TrimStream(
                stream_id=state.topics[topic].partitions[partition], start_offset=start_offset
            )
        ],
    )


def _commit(root: Path, plan: Callable[[MetadataImage], list[Record]]) -> None:
    async def commit() -> None:
        store = FileStore(root)
        log = await MetadataLog.open(
            store, writer_id="test", clock=SystemClock(), rng=random.Random(1)
        )
        await log.commit_with(plan)
        await store.close()

    asyncio.run(commit())
