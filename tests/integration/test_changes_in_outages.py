"""Changes of the metadata while the object store takes no puts: a client gets REQUEST_TIMED_OUT by
the timeout of its request, and the change is whole or not there.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.deadline import CHANGE_MAX_S, Deadline
from lakehead.broker.node import Node
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.storage.metadata.state import INTERNAL_TOPICS
from lakehead.storage.object_store import Buffer, MemoryStore
from tests.integration.test_node_protocol import running
from tests.support.node_client import LIMIT_S, Client

TIMEOUT = timedelta(milliseconds=150)
TIMED_OUT = ErrorCode.request_timed_out


class ReadOnlyStore(MemoryStore):
    """A store that takes no entry of the metadata log while the gate is shut."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()
        self.gate.set()

    @asynccontextmanager
    async def shut(self) -> AsyncIterator[None]:
        self.gate.clear()
        try:
            yield
        finally:
            self.gate.set()

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        if key.startswith("meta/log/"):
            await self.gate.wait()
        await super().create(key, pieces)


async def create_topics(client: Client, *names: str, within: timedelta = TIMEOUT) -> list[Any]:
    module = schema(19, 7).request_module
    topics = [
        entity(
            module,
            "CreatableTopic",
            name=name,
            num_partitions=3,
            replication_factor=1,
            assignments=(),
            configs=(),
        )
        for name in names
    ]
    message = entity(module, "CreateTopicsRequest", topics=topics, timeout=within)
    return [one.error_code for one in (await client.ask(19, 7, message)).topics]


async def delete_topic(client: Client, name: str, within: timedelta = TIMEOUT) -> Any:
    module = schema(20, 6).request_module
    topic = entity(module, "DeleteTopicState", name=name, topic_id=None)
    message = entity(module, "DeleteTopicsRequest", topics=[topic], timeout=within)
    return (await client.ask(20, 6, message)).responses[0].error_code


async def add_partitions(client: Client, name: str, count: int) -> Any:
    module = schema(37, 3).request_module
    topic = entity(module, "CreatePartitionsTopic", name=name, count=count, assignments=None)
    message = entity(
        module, "CreatePartitionsRequest", topics=[topic], timeout=TIMEOUT, validate_only=False
    )
    return (await client.ask(37, 3, message)).results[0].error_code


async def alter_credentials(client: Client, user: str) -> Any:
    module = schema(51, 0).request_module
    change = entity(
        module,
        "ScramCredentialUpsertion",
        name=user,
        mechanism=1,
        iterations=4096,
        salt=b"salt",
        salted_password=b"p" * 32,
    )
    message = entity(module, "AlterUserScramCredentialsRequest", deletions=(), upsertions=[change])
    (result,) = (await client.ask(51, 0, message)).results
    assert result.user == user
    return result.error_code


async def topic_error(client: Client, name: str) -> Any:
    module = schema(3, 12).request_module
    topic = entity(module, "MetadataRequestTopic", name=name, topic_id=None)
    message = entity(
        module,
        "MetadataRequest",
        topics=[topic],
        allow_auto_topic_creation=True,
        include_topic_authorized_operations=False,
    )
    return (await client.ask(3, 12, message)).topics[0].error_code


async def producer_id(client: Client) -> Any:
    module = schema(22, 4).request_module
    message = entity(
        module,
        "InitProducerIdRequest",
        transactional_id=None,
        transaction_timeout=timedelta(seconds=60),
    )
    return (await client.ask(22, 4, message)).error_code


async def coordinator_error(client: Client, group_id: str) -> Any:
    module = schema(10, 4).request_module
    message = entity(module, "FindCoordinatorRequest", key_type=0, coordinator_keys=(group_id,))
    return (await client.ask(10, 4, message)).coordinators[0].error_code


def are_whole(node: Node) -> bool:
    """Return true if no topic has a part of its partitions."""
    topics = node.services.state.topics
    return all(
        len(one.partitions) in {2, 3, 5}
        for name, one in topics.items()
        if name not in INTERNAL_TOPICS
    )


async def test_changes_time_out_and_are_whole_or_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = ReadOnlyStore()
    async with running(store) as node:
        client = await Client.connect(node)
        assert await create_topics(client, "old", within=timedelta(seconds=LIMIT_S)) == [
            ErrorCode.none
        ]
        async with asyncio.timeout(LIMIT_S), store.shut():
            assert await create_topics(client, "a", "b") == [TIMED_OUT] * 2
            assert await create_topics(client, "a", "c") == [TIMED_OUT] * 2
            assert await add_partitions(client, "old", 5) == TIMED_OUT
            assert await delete_topic(client, "old") == TIMED_OUT
            monkeypatch.setattr(Deadline.__init__, "__defaults__", (0.15,))
            assert await alter_credentials(client, "anna") == TIMED_OUT
            monkeypatch.setattr("lakehead.broker.producer_ids._WAIT_S", 0.15)
            assert await producer_id(client) == ErrorCode.coordinator_load_in_progress
            monkeypatch.setattr("lakehead.broker.api.metadata._CREATION_S", 0.15)
            assert await topic_error(client, "d") == ErrorCode.leader_not_available
            monkeypatch.setattr(
                "lakehead.broker.cluster.replication_control._INTERNAL_CREATION_S", 0.15
            )
            # A producer with transactions takes any other error for one that ends it.
            assert await coordinator_error(client, "g") == ErrorCode.coordinator_not_available
        monkeypatch.undo()
        long = timedelta(seconds=LIMIT_S)
        (code,) = await create_topics(client, "e", within=long)
        assert code == ErrorCode.none
        assert are_whole(node)
        for name in ("a", "b", "c"):
            made = (await create_topics(client, name, within=long))[0]
            assert made in {ErrorCode.none, ErrorCode.topic_already_exists}
        assert await topic_error(client, "d") == ErrorCode.none
        assert await producer_id(client) == ErrorCode.none
        assert await coordinator_error(client, "g") == ErrorCode.none
        assert await delete_topic(client, "a", within=long) == ErrorCode.none
        assert are_whole(node)


@pytest.mark.parametrize(
    ("seconds", "least", "most"), [(0.5, 0.4, 0.5), (0, 59, 60), (-1, 59, 60), (900, 59, 60)]
)
async def test_a_deadline_is_the_clients_within_a_minute(
    seconds: float, least: float, most: float
) -> None:
    class Request:
        timeout = timedelta(seconds=seconds)

    assert least <= Deadline.of(Request()).left_s <= most
    assert 59 <= Deadline.of(object()).left_s <= CHANGE_MAX_S
