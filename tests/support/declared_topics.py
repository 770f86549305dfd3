"""Configs of topics, set in a cluster's metadata log without a broker."""

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path

from storage.clock import SystemClock
from storage.metadata.log import MetadataLog
from storage.metadata.records import TopicConfig
from storage.object_store import FileStore


def configure(root: Path, topic: str, configs: Mapping[str, str | None]) -> None:
    """Set configs of a topic; None removes one."""

    async def commit() -> None:
        store = FileStore(root)
        log = await MetadataLog.open(
            store, writer_id="test", clock=SystemClock(), rng=random.Random(1)
        )
        topic_id = log.state.topics[topic].topic_id
        await log.commit([TopicConfig(topic_id=topic_id, configs=dict(configs))])
        await store.close()

    asyncio.run(commit())
