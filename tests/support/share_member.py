"""A member of a share group in kio's messages, over a connection of its own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from lakehead.broker.node import Node
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.format.record_batch import iter_headers
from lakehead.storage.format.records import iter_kafka_records
from tests.support.node_client import Client

GAP, ACCEPT, RELEASE, REJECT, RENEW = range(5)
FETCH, ACKNOWLEDGE = 78, 79
_FIRST_WAIT_MS = 60_000

Acks = Mapping[int, Sequence[tuple[int, int, Sequence[int]]]]
"""By partition: (first offset, last offset, types)."""
Acquired = list[tuple[int, int, int]]


async def share(
    node: Node, topic: str = "t", group: str = "team", start: int = 0, state_epoch: int = 1
) -> None:
    """Have a group begin in each partition of a topic, as its coordinator does: again, in a later
    epoch.
    """
    found = node.topics.by_name[topic]
    await node.share_coordinator.partition_for(f"{group}:x:0")
    for index in range(len(found.partitions)):
        key = SharePartitionKey(group, found.id_bytes, index)
        await node.share_coordinator.initialize(key, state_epoch, start)


class ShareMember:
    """One member, in a session."""

    def __init__(self, client: Client, topic_id: UUID, member_id: str, group: str = "team") -> None:
        self.client = client
        self.member_id = member_id
        self.group = group
        self.topic_id = topic_id
        self.epoch = 0
        self.version = 2
        self.lock_ms = 0

    @classmethod
    async def connect(cls, node: Node, member_id: str, **how: str) -> "ShareMember":
        topic_id = node.topics.by_name["t"].uuid
        return cls(await Client.connect(node), topic_id, member_id, **how)

    def send_fetch(
        self,
        partitions: Iterable[int] = (),
        acks: Acks | None = None,
        *,
        wait_ms: int = 0,
        epoch: int | None = None,
        **fields: Any,
    ) -> None:
        module = schema(FETCH, self.version).request_module
        given = {
            "max_wait": wait_ms,
            "min_bytes": 1,
            "max_bytes": 1 << 24,
            "max_records": 500,
            "batch_size": 500,
            "forgotten_topics_data": [],
            **fields,
        }
        request = entity(
            module,
            "ShareFetchRequest",
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self.epoch if epoch is None else epoch,
            topics=self._topics(module, "Fetch", partitions, acks or {}),
            **given,
        )
        self.client.send(FETCH, self.version, request)

    async def receive_fetch(self) -> Any:
        response = await self.client.receive()
        if response.error_code is ErrorCode.none:
            self.epoch += 1
        self.lock_ms = round(response.acquisition_lock_timeout.total_seconds() * 1000)
        return response

    async def fetch(
        self,
        partitions: Iterable[int] = (),
        acks: Acks | None = None,
        *,
        wait_ms: int | None = None,
        **how: Any,
    ) -> dict[int, Acquired]:
        """Return the records that were acquired, by partition. The first request waits for them,
        as the group may have to be loaded, later ones only if that is said.
        """
        if wait_ms is None:
            wait_ms = 0 if self.epoch else _FIRST_WAIT_MS
        self.send_fetch(partitions, acks, wait_ms=wait_ms, **how)
        response = await self.receive_fetch()
        assert response.error_code is ErrorCode.none, response.error_code
        found = {}
        for partition in parts(response):
            assert partition.error_code is ErrorCode.none, partition
            assert partition.acknowledge_error_code == 0, partition
            acquired = [
                (one.first_offset, one.last_offset, one.delivery_count)
                for one in partition.acquired_records
            ]
            offsets = set(_offsets(partition.records))
            for first, last, _ in acquired:
                assert offsets & set(range(first, last + 1)), "acquired records were not sent"
            if acquired:
                found[partition.partition_index] = acquired
        return found

    async def acknowledge(
        self, acks: Acks, *, epoch: int | None = None, is_renew_ack: bool = False
    ) -> Any:
        """Return the response."""
        module = schema(ACKNOWLEDGE, self.version).request_module
        request = entity(
            module,
            "ShareAcknowledgeRequest",
            group_id=self.group,
            member_id=self.member_id,
            share_session_epoch=self.epoch if epoch is None else epoch,
            is_renew_ack=is_renew_ack,
            topics=self._topics(module, "Acknowledge", (), acks),
        )
        response = await self.client.ask(ACKNOWLEDGE, self.version, request)
        if response.error_code is ErrorCode.none and epoch is None:
            self.epoch += 1
        return response

    async def code(self, acks: Acks, **how: Any) -> ErrorCode:
        """Return the code of an acknowledgement: of the response, else of the only partition."""
        response = await self.acknowledge(acks, **how)
        if response.error_code is not ErrorCode.none:
            return ErrorCode(response.error_code)
        (partition,) = parts(response)
        return ErrorCode(partition.error_code)

    def _topics(self, module: Any, name: str, partitions: Iterable[int], acks: Acks) -> list[Any]:
        places = [
            entity(
                module,
                f"{name}Partition",
                partition_index=index,
                acknowledgement_batches=[
                    entity(
                        module,
                        "AcknowledgementBatch",
                        first_offset=first,
                        last_offset=last,
                        acknowledge_types=tuple(types),
                    )
                    for first, last, types in acks.get(index, ())
                ],
            )
            for index in dict.fromkeys((*partitions, *acks))
        ]
        if not places:
            return []
        return [entity(module, f"{name}Topic", topic_id=self.topic_id, partitions=places)]


def _offsets(records: bytes | None) -> Iterator[int]:
    data = memoryview(records or b"")
    for position, header in iter_headers(data):
        if header.is_control:
            continue
        for one in iter_kafka_records(data[position : position + header.size]):
            yield one.offset


def parts(response: Any) -> list[Any]:
    """The partitions of a response."""
    return [one for topic in response.responses for one in topic.partitions]
