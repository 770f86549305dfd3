"""Asks a node in this process, in the versions one likes, past the network but in its bytes."""

import inspect
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from uuid import UUID

from lakehead.broker import api
from lakehead.broker.node import Node, start_node
from lakehead.broker.protocol.frame import encode_response
from lakehead.broker.request_context import RequestContext
from lakehead.broker.settings import Settings

TOPIC, GROUP = "known", "team"
REGISTRY = api.registry()


class ApiClient:
    """Asks a node in the versions it is told to; as another node, so that it may ask anything."""

    def __init__(self, node: Node) -> None:
        self.node = node

    def uuid(self) -> UUID:
        topic = self.node.topics.find(TOPIC)
        assert topic is not None
        return topic.uuid

    async def ask(self, key: int, version: int, build: Callable[[ModuleType], Any]) -> Any:
        route = REGISTRY.route(key)
        assert route is not None
        assert route.handle is not None
        context = RequestContext(
            api=route.api,
            version=version,
            client_id="client",
            client_host="127.0.0.1",
            services=self.node.services,
            connection=None,
            is_from_node=True,
        )
        answer = route.handle(build(context.request), context)
        if inspect.isawaitable(answer):
            answer = await answer
        assert encode_response(answer, 1)
        return answer


@asynccontextmanager
async def api_client(folder: Path) -> AsyncIterator[ApiClient]:
    """A node with the topic TOPIC of two partitions, ready to coordinate the group GROUP."""
    settings = Settings(
        data=str(folder),
        port=0,
        wal_size=64 << 20,
        cache_size=16 << 20,
        offsets_topic_num_partitions=2,
    )
    node = await start_node(settings, rng=random.Random(3))
    try:
        await node.replication_control.create(TOPIC, 2)
        await node.groups.partition_for(GROUP)
        yield ApiClient(node)
    finally:
        await node.close()


def versions(key: int) -> list[int]:
    route = REGISTRY.route(key)
    assert route is not None
    return list(range(route.api.versions[0], route.api.versions[1] + 1))
