"""Apache Kafka and a node, started for requests about groups."""

import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.apache_kafka.server import kafka_server
from lakehead.broker.node import start_node
from lakehead.broker.settings import Settings


@asynccontextmanager
async def group_servers(
    seed: int, kafka: dict[str, str], **node_settings: Any
) -> AsyncIterator[tuple[int, int]]:
    """Start both, Kafka with these settings and the node with those; yield their ports."""
    with tempfile.TemporaryDirectory(prefix="differential-") as name:
        theirs, ours = Path(name) / "kafka", Path(name) / "lakehead"
        theirs.mkdir()
        settings = Settings(
            data=str(ours),
            port=0,
            wal_size=64 << 20,
            cache_size=16 << 20,
            offsets_topic_num_partitions=3,
            **node_settings,
        )
        with kafka_server(theirs, settings=kafka) as server:
            node = await start_node(settings, rng=random.Random(seed))
            try:
                yield server.port, node.advertised_port
            finally:
                await node.close()
