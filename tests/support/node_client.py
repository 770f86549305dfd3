"""One connection to a node in this process, in kio's messages: requests may be sent before earlier
ones are answered.
"""

import asyncio
import contextlib
import struct
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from lakehead.broker.node import Node
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.frame import encode_request
from lakehead.broker.protocol.messages import entity
from lakehead.broker.protocol.node_proof import NO_PROOF

LIMIT_S = 60.0
_CLIENT_ID_AT = 12
_connected: "list[Client]" = []


async def close_clients() -> None:
    """Close every connection that was made."""
    while _connected:
        writer = _connected.pop().writer
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


def _named(frame: bytes, client_id: str) -> bytes:
    """Return a request that has a client id."""
    name = client_id.encode()
    head = frame[4:_CLIENT_ID_AT] + struct.pack(">h", len(name)) + name
    rest = frame[_CLIENT_ID_AT + 2 :]
    return struct.pack(">i", len(head) + len(rest)) + head + rest


class Client:
    """One connection. Messages are kio's."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.proof = NO_PROOF
        """What proves that a node asks; nothing does by default."""
        self.client_id: str | None = None
        self._correlation = 0
        self._sent: list[tuple[int, int, int]] = []

    @classmethod
    async def connect(cls, node: Node) -> "Client":
        return await cls.connect_to(node.advertised_port)

    @classmethod
    async def connect_to(cls, port: int, *, local_host: str | None = None) -> "Client":
        """Return a connection to any broker on this machine, from `local_host` if that is given."""
        local = None if local_host is None else (local_host, 0)
        client = cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=local))
        _connected.append(client)
        return client

    def send(self, key: int, version: int, message: Any, *, answered: bool = True) -> None:
        self._correlation += 1
        frame = encode_request(key, version, self._correlation, message, self.proof)
        self.writer.write(frame if self.client_id is None else _named(frame, self.client_id))
        if answered:
            self._sent.append((key, version, self._correlation))

    async def receive(self) -> Any:
        key, version, correlation = self._sent.pop(0)
        async with asyncio.timeout(LIMIT_S):
            size = struct.unpack(">i", await self.reader.readexactly(4))[0]
            frame = await self.reader.readexactly(size)
        message = schema(key, version)
        assert struct.unpack_from(">i", frame)[0] == correlation
        return entity_reader(message.response_class)(frame, 5 if message.flexible_response else 4)[
            0
        ]

    async def ask(self, key: int, version: int, message: Any) -> Any:
        self.send(key, version, message)
        return await self.receive()

    def produce(
        self,
        batch: bytes,
        *,
        partition: int = 0,
        acks: int = -1,
        topic: str = "t",
        topic_id: UUID | None = None,
    ) -> None:
        self.produce_to({partition: batch}, acks=acks, topic=topic, topic_id=topic_id)

    def produce_to(
        self,
        batches: Mapping[int, bytes],
        *,
        acks: int = -1,
        version: int = 10,
        transactional_id: str | None = None,
        topic: str = "t",
        topic_id: UUID | None = None,
    ) -> None:
        version = version if topic_id is None else 13
        module = schema(0, version).request_module
        data = [
            entity(module, "PartitionProduceData", index=partition, records=batch)
            for partition, batch in batches.items()
        ]
        of_topic = entity(
            module, "TopicProduceData", partition_data=data, name=topic, topic_id=topic_id
        )
        message = entity(
            module,
            "ProduceRequest",
            transactional_id=transactional_id,
            acks=acks,
            timeout=9000,
            topic_data=[of_topic],
        )
        self.send(0, version, message, answered=acks != 0)

    async def produced(self) -> tuple[int, int]:
        answer = (await self.receive()).responses[0].partition_responses[0]
        return answer.error_code, answer.base_offset

    async def produced_to(self) -> dict[int, tuple[ErrorCode, int]]:
        answers = (await self.receive()).responses[0].partition_responses
        return {one.index: (one.error_code, one.base_offset) for one in answers}

    def fetch(
        self,
        offsets: dict[int, int],
        *,
        version: int = 12,
        wait_ms: int = 10_000,
        min_bytes: int = 1,
        max_bytes: int = 1 << 20,
        partition_max_bytes: int | None = None,
        last_fetched_epoch: int = -1,
        session: tuple[int, int] = (0, -1),
        topic_id: Any = None,
        forgotten: Sequence[int] = (),
        is_committed: bool = False,
    ) -> None:
        module = schema(1, version).request_module
        partitions = [
            entity(
                module,
                "FetchPartition",
                partition=partition,
                fetch_offset=offset,
                last_fetched_epoch=last_fetched_epoch,
                log_start_offset=-1,
                partition_max_bytes=partition_max_bytes or max_bytes,
            )
            for partition, offset in offsets.items()
        ]
        topics, forget = [], []
        place = {"topic": "t", "topic_id": topic_id}
        if partitions:
            topics.append(entity(module, "FetchTopic", partitions=partitions, **place))
        if forgotten:
            forget.append(entity(module, "ForgottenTopic", partitions=tuple(forgotten), **place))
        message = entity(
            module,
            "FetchRequest",
            replica_id=-1,
            max_wait=wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=int(is_committed),
            session_id=session[0],
            session_epoch=session[1],
            topics=topics,
            forgotten_topics_data=forget,
        )
        self.send(1, version, message)

    async def list_offsets(self, asked: Any, *, is_committed: bool = False) -> Any:
        module = schema(2, 6).request_module
        topic = entity(module, "ListOffsetsTopic", name="t", partitions=[asked])
        message = entity(
            module,
            "ListOffsetsRequest",
            replica_id=-1,
            isolation_level=int(is_committed),
            topics=[topic],
        )
        return (await self.ask(2, 6, message)).topics[0].partitions[0]

    async def fetched(self) -> dict[int, Any]:
        answer = await self.receive()
        assert answer.error_code == 0
        return {p.partition_index: p for topic in answer.responses for p in topic.partitions}
