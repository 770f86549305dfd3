"""Maintenance beside a node: the look for due work leaves the event loop to the node's clients."""

import asyncio
import random

from lakehead.broker.maintenance.beside import MaintenanceBeside
from lakehead.broker.setting_sources import load
from lakehead.storage.clock import SystemClock
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import CreateStream, CreateTopic
from lakehead.storage.object_store import MemoryStore
from tests.unit.test_metadata_rules import TOPIC

PARTITIONS = 20_000


async def test_the_look_at_a_topic_of_many_partitions_gives_way() -> None:
    clock, rng = SystemClock(), random.Random(1)
    log = await MetadataLog.open(MemoryStore(), writer_id="w", clock=clock, rng=rng)
    configs = {"cleanup.policy": "compact"}
    await log.commit(
        [
            CreateTopic(name="t", topic_id=TOPIC, configs=configs),
            *(CreateStream(stream_id=n, topic_id=TOPIC, partition=n) for n in range(PARTITIONS)),
        ]
    )
    settings = load({"store": "memory:", "wal": "memory:"})
    maintenance = MaintenanceBeside(log, settings, clock, lambda: True)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.ensure_future(others())
    await maintenance.turn()
    task.cancel()
    assert turns > 5
    assert maintenance.due == 0
