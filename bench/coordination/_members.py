"""Members of groups that cost next to nothing: one connection each, frames that are made once.

A load of thousands of real clients would measure the clients.
"""

import asyncio
import struct
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader

from bench.process import ServerFailed
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.frame import encode_request
from lakehead.broker.protocol.messages import entity

ASKED_TIMES = 300
SESSION_MS = 45_000
SUBSCRIPTION, ASSIGNMENT = bytes(100), bytes(200)
_JOIN, _HEARTBEAT, _SYNC, _COORDINATOR = (11, 9), (12, 4), (14, 5), (10, 3)
_CONSUMER_HEARTBEAT = (68, 1)
_HEARTBEAT_CODE = slice(9, 11)
_LENGTH = struct.Struct(">i")


class Line(asyncio.Protocol):
    """A connection that sends whole frames; responses come back as frames, in order."""

    def __init__(self) -> None:
        self._transport: asyncio.WriteTransport | None = None
        self._received = bytearray()
        self._waiting: deque[asyncio.Future[bytes]] = deque()

    @classmethod
    async def to(cls, port: int) -> Self:
        """Connect to a server on this machine."""
        loop = asyncio.get_running_loop()
        return (await loop.create_connection(cls, "127.0.0.1", port))[1]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        self._transport = transport  # type: ignore[assignment]

    def data_received(self, data: bytes) -> None:
        """Hand out whole frames."""
        received = self._received
        received += data
        while len(received) >= 4:
            end = 4 + _LENGTH.unpack_from(received)[0]
            if len(received) < end:
                return
            self._waiting.popleft().set_result(bytes(received[4:end]))
            del received[:end]

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the requests that wait for a response."""
        for waiting in self._waiting:
            if not waiting.done():
                waiting.set_exception(exc or ConnectionError("closed"))

    def ask(self, frame: bytes) -> "asyncio.Future[bytes]":
        """Send a frame, length included; the future gets the response's."""
        assert self._transport is not None
        answer: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._transport.write(frame)
        return answer

    async def ask_for(self, api: tuple[int, int], request: Any) -> Any:
        """Send a request, and return its response."""
        message = schema(*api)
        frame = await self.ask(encode_request(*api, 1, request))
        return entity_reader(message.response_class)(frame, 5 if message.flexible_response else 4)[
            0
        ]

    def close(self) -> None:
        """Be gone."""
        assert self._transport is not None
        self._transport.close()


@dataclass(slots=True)
class Member:
    """A member of a group, by protocol 9 of JoinGroup."""

    line: Line
    group_id: str
    member_id: str = ""
    generation: int = -1
    beat: bytes = b""

    async def join(self) -> Sequence[str]:
        """Take part in a rebalance; return every member's id if this one leads."""
        module = schema(*_JOIN).request_module
        while True:
            protocol = entity(
                module, "JoinGroupRequestProtocol", name="range", metadata=SUBSCRIPTION
            )
            answer = await self.line.ask_for(
                _JOIN,
                entity(
                    module,
                    "JoinGroupRequest",
                    group_id=self.group_id,
                    session_timeout=SESSION_MS,
                    rebalance_timeout=60_000,
                    member_id=self.member_id,
                    protocol_type="consumer",
                    protocols=(protocol,),
                ),
            )
            self.member_id = answer.member_id
            if answer.error_code is not ErrorCode.member_id_required:
                break
        assert answer.error_code is ErrorCode.none, answer
        self.generation = answer.generation_id
        return [member.member_id for member in answer.members]

    async def sync(self, everyone: Sequence[str]) -> None:
        """Give the assignment of everyone, if this one leads; return with its own."""
        module = schema(*_SYNC).request_module
        answer = await self.line.ask_for(
            _SYNC,
            entity(
                module,
                "SyncGroupRequest",
                group_id=self.group_id,
                generation_id=self.generation,
                member_id=self.member_id,
                protocol_type="consumer",
                protocol_name="range",
                assignments=[
                    entity(
                        module, "SyncGroupRequestAssignment", member_id=one, assignment=ASSIGNMENT
                    )
                    for one in everyone
                ],
            ),
        )
        assert answer.error_code is ErrorCode.none, answer
        assert answer.assignment == ASSIGNMENT
        beat = entity(
            schema(*_HEARTBEAT).request_module,
            "HeartbeatRequest",
            group_id=self.group_id,
            generation_id=self.generation,
            member_id=self.member_id,
        )
        self.beat = encode_request(*_HEARTBEAT, 1, beat)

    async def rebalance(self) -> None:
        """Join, and sync."""
        await self.sync(await self.join())

    async def heartbeat(self) -> None:
        """Show that it lives."""
        answer = await self.line.ask(self.beat)
        assert answer[_HEARTBEAT_CODE] == b"\0\0", "a rebalance, or the member is not known"


@dataclass(slots=True)
class ConsumerMember:
    """A member of a consumer group, by version 1 of ConsumerGroupHeartbeat."""

    line: Line
    group_id: str
    member_id: str
    topic: str
    epoch: int = 0
    owned: dict[Any, tuple[int, ...]] = field(default_factory=dict)

    async def heartbeat(self, *, says_all: bool = False) -> None:
        """Send a heartbeat; if it takes partitions away, another without them."""
        answer = await self._sent(says_all=says_all)
        assert answer.error_code is ErrorCode.none, answer
        self.epoch = answer.member_epoch
        if answer.assignment is None:
            return
        before = sum(map(len, self.owned.values()))
        topics = answer.assignment.topic_partitions
        self.owned = {topic.topic_id: topic.partitions for topic in topics}
        if sum(map(len, self.owned.values())) < before:
            await self.heartbeat(says_all=True)

    async def leave(self) -> None:
        """Leave the group."""
        self.epoch = -1
        await self._sent(says_all=False)

    async def _sent(self, *, says_all: bool) -> Any:
        module = schema(*_CONSUMER_HEARTBEAT).request_module
        is_joining = self.epoch == 0
        owned = [
            entity(module, "TopicPartitions", topic_id=topic_id, partitions=partitions)
            for topic_id, partitions in self.owned.items()
        ]
        request = entity(
            module,
            "ConsumerGroupHeartbeatRequest",
            group_id=self.group_id,
            member_id=self.member_id,
            member_epoch=self.epoch,
            rebalance_timeout=60_000 if is_joining else -1,
            subscribed_topic_names=(self.topic,) if is_joining else None,
            topic_partitions=owned if is_joining or says_all else None,
        )
        return await self.line.ask_for(_CONSUMER_HEARTBEAT, request)


async def coordinated(port: int) -> None:
    """Return when the only node coordinates groups."""
    line = await Line.to(port)
    module = schema(*_COORDINATOR).request_module
    asked = entity(module, "FindCoordinatorRequest", key="any", key_type=0)
    for _ in range(ASKED_TIMES):
        if (await line.ask_for(_COORDINATOR, asked)).error_code is ErrorCode.none:
            break
        await asyncio.sleep(0.1)
    else:
        raise ServerFailed("no node coordinates groups")
    line.close()


async def members(port: int, groups: int, size: int) -> list[Member]:
    """Return the members of stable groups, each with a connection of its own."""
    everyone = [
        Member(await Line.to(port), f"group-{number}")
        for number in range(groups)
        for _ in range(size)
    ]
    for start in range(0, len(everyone), 50 * size):  # a few at a time, as after a deployment
        some = everyone[start : start + 50 * size]
        await asyncio.gather(*(member.rebalance() for member in some))
    return everyone
