"""A conversation about share groups that any broker may have: requests right and wrong, and of each
response what a client goes by. Kafka's part is in `tests/fixtures/kafka/share-conversation.json`:
`python -m tests.support.share_conversation` records it again.
"""

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from bench.apache_kafka.server import kafka_server
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from tests.support.node_client import Client, close_clients
from tests.support.share_member import ACCEPT, GAP, REJECT, RELEASE, RENEW, ShareMember, parts
from tests.support.wire import Batch

RECORDED = Path(__file__).parents[1] / "fixtures" / "kafka" / "share-conversation.json"
GROUP = "team"
_PAUSE_S = 0.1
_WAIT_MS = 5_000

Lines = list[list[Any]]
"""What was asked, and the codes and values of the response."""


class Conversation:
    """One client of a broker; `lines` is what it heard."""

    def __init__(self, client: Client, port: int) -> None:
        self.client = client
        self.port = port
        self.lines: Lines = []
        self.topic_id = UUID(int=0)

    def note(self, what: str, *heard: Any) -> None:
        self.lines.append([what, *heard])

    async def ask(self, key: int, version: int, name: str, **fields: Any) -> Any:
        module = schema(key, version).request_module
        return await self.client.ask(key, version, entity(module, name, **fields))

    async def hold(self) -> Lines:
        await self.prepare()
        await self.join()
        first = await self.member("a")
        await self.open_sessions(first)
        await self.acknowledge(first)
        await self.describe()
        await self.leave(first)
        await self.administer()
        return self.lines

    async def member(self, member_id: str) -> ShareMember:
        return ShareMember(await Client.connect_to(self.port), self.topic_id, member_id)

    # The parts of the conversation.

    async def prepare(self) -> None:
        module = schema(19, 7).request_module
        topic = entity(
            module,
            "CreatableTopic",
            name="t",
            num_partitions=2,
            replication_factor=1,
            assignments=[],
            configs=[],
        )
        made = await self.ask(19, 7, "CreateTopicsRequest", topics=[topic], timeout=30_000)
        self.topic_id = made.topics[0].topic_id
        module = schema(44, 1).request_module
        config = entity(
            module,
            "AlterableConfig",
            name="share.auto.offset.reset",
            config_operation=0,
            value="earliest",
        )
        resource = entity(
            module,
            "AlterConfigsResource",
            resource_type=32,
            resource_name=GROUP,
            configs=[config],
        )
        changed = await self.ask(
            44, 1, "IncrementalAlterConfigsRequest", resources=[resource], validate_only=False
        )
        self.note("configure", *(one.error_code for one in changed.responses))
        for group in (GROUP, "fresh", "nope"):
            while True:
                found = await self.ask(
                    10, 6, "FindCoordinatorRequest", key_type=0, coordinator_keys=[group]
                )
                reached = await self.heartbeat("x", 5, group=group)
                is_there = found.coordinators[0].error_code is ErrorCode.none
                if is_there and reached.error_code is ErrorCode.group_id_not_found:
                    break
                await asyncio.sleep(_PAUSE_S)

    async def heartbeat(
        self,
        member_id: str,
        epoch: int,
        topics: tuple[str, ...] | None = ("t",),
        group: str = GROUP,
    ) -> Any:
        return await self.ask(
            76,
            1,
            "ShareGroupHeartbeatRequest",
            group_id=group,
            member_id=member_id,
            member_epoch=epoch,
            subscribed_topic_names=topics,
        )

    async def join(self) -> None:
        for what, given in {
            "without a member id": ("", 0),
            "without a group": ("a", 0, ("t",), ""),
            "without topics": ("a", 0, ()),
            "with null for topics": ("a", 0, None),
            "with epoch -2": ("a", -2),
        }.items():
            response = await self.heartbeat(*given)  # type: ignore[arg-type]
            self.note(f"heartbeat {what}", response.error_code)
        while True:
            joined = await self.heartbeat("a", 0)
            topics = joined.assignment.topic_partitions if joined.assignment else ()
            if topics or joined.error_code is not ErrorCode.none:
                break
            await asyncio.sleep(_PAUSE_S)
        indexes = sorted(index for topic in topics for index in topic.partitions)
        self.note("join", joined.error_code, indexes)
        for what, member_id, epoch in (
            ("unknown member", "z", 5),
            ("future epoch", "a", joined.member_epoch + 10),
            ("unknown member leaves", "z", -1),
        ):
            response = await self.heartbeat(member_id, epoch)
            self.note(f"heartbeat {what}", response.error_code)
        self.client.produce(Batch(values=(b"v",) * 4).encode(), topic_id=self.topic_id)
        assert (await self.client.produced())[0] == 0

    async def code(self, member: ShareMember, **how: Any) -> int:
        member.send_fetch(**how)
        return int((await member.receive_fetch()).error_code)

    async def open_sessions(self, member: ShareMember) -> None:
        acks = {0: [(0, 0, [ACCEPT])]}
        self.note("fetch without a session", await self.code(member, epoch=1))
        self.note("fetch the end of none", await self.code(member, epoch=-1))
        self.note("begin with verdicts", await self.code(member, acks=acks, epoch=0))
        self.note("acknowledge epoch 0", await member.code({}, epoch=0))
        self.note("acknowledge without a session", await member.code(acks, epoch=3))
        member.epoch = 0
        found: dict[int, Any] = {}
        while 0 not in found or not found[0].acquired_records:
            member.send_fetch([] if member.epoch else [0, 9], wait_ms=_WAIT_MS)
            response = await member.receive_fetch()
            found |= {one.partition_index: one for one in parts(response)}
        self.note("fetch", _acquired(found[0]), found[9].error_code)
        self.note("fetch another epoch", await self.code(member, epoch=77))
        self.note("acknowledge another epoch", await member.code(acks, epoch=77))

    async def acknowledge(self, member: ShareMember) -> None:
        other = await self.member("b")
        other.send_fetch([0], wait_ms=500)
        response = await other.receive_fetch()
        self.note("fetch of another", [_acquired(one) for one in parts(response)])
        wrong: list[list[tuple[int, int, list[int]]]] = [
            [(0, 0, [RENEW])],
            [(0, 0, [9])],
            [(0, 0, [-1])],
            [(0, 3, [ACCEPT, ACCEPT])],
            [(0, 3, [])],
            [(2, 1, [ACCEPT])],
            [(2, 3, [ACCEPT]), (0, 1, [ACCEPT])],
            [(0, 1, [ACCEPT]), (1, 2, [ACCEPT])],
            [(0, 4, [ACCEPT])],
            [(40, 41, [ACCEPT])],
        ]
        for batches in wrong:
            self.note(f"acknowledge {batches}", await member.code({0: batches}))
        self.note("acknowledge of another", await other.code({0: [(0, 0, [ACCEPT])]}))
        for index in (1, 7):
            code = await member.code({index: [(0, 0, [ACCEPT])]})
            self.note(f"acknowledge partition {index}", code)
        each = [ACCEPT, GAP, REJECT, RELEASE]
        self.note("acknowledge each", await member.code({0: [(0, 3, each)]}))
        self.note("acknowledge what is done", await member.code({0: [(0, 2, [ACCEPT])]}))
        self.note("acknowledge what is free", await member.code({0: [(3, 3, [ACCEPT])]}))
        member.send_fetch(wait_ms=_WAIT_MS)
        again = [one for one in parts(await member.receive_fetch()) if one.acquired_records]
        self.note("fetch again", [_acquired(one) for one in again])
        acks = {0: [(3, 3, [RENEW])]}
        self.note("renew", await member.code(acks, is_renew_ack=True))
        self.note("renew and fetch", await self.code(member, acks=acks, is_renew_ack=True))
        self.note("accept", await member.code({0: [(3, 3, [ACCEPT])]}))

    async def describe(self) -> None:
        module = schema(90, 1).request_module
        for group in (GROUP, "nope"):
            wanted = entity(
                module, "DescribeShareGroupOffsetsRequestGroup", group_id=group, topics=None
            )
            response = await self.ask(90, 1, "DescribeShareGroupOffsetsRequest", groups=[wanted])
            for one in response.groups:
                offsets = sorted(
                    [place.partition_index, place.start_offset, place.error_code]
                    for topic in one.topics
                    for place in topic.partitions
                )
                self.note(f"offsets of {group}", one.error_code, offsets)
        for group in (GROUP, "nope", ""):
            response = await self.ask(
                77,
                1,
                "ShareGroupDescribeRequest",
                group_ids=[group],
                include_authorized_operations=False,
            )
            for one in response.groups:
                self.note(
                    f"describe {group!r}",
                    *(one.error_code, one.group_state, one.assignor_name, len(one.members)),
                )

    async def leave(self, member: ShareMember) -> None:
        await self.change_offsets("with members")
        response = await member.acknowledge({}, epoch=-1)
        self.note("end a session", response.error_code)
        self.note("acknowledge after the end", await member.code({}, epoch=5))
        left = await self.heartbeat("a", -1, None)
        self.note("leave", left.error_code, left.member_epoch)

    async def change_offsets(self, what: str) -> None:
        self.note(f"alter {what}", *await self.alter(GROUP, 0))
        self.note(f"delete offsets {what}", *await self.forget(GROUP))
        response = await self.ask(42, 2, "DeleteGroupsRequest", groups_names=[GROUP])
        self.note(f"delete {what}", response.results[0].error_code)

    async def administer(self) -> None:
        self.note("alter", *await self.alter(GROUP, 1))
        self.note("alter partition 9", *await self.alter(GROUP, 1, index=9))
        self.note("alter a topic that is missing", *await self.alter(GROUP, 1, name="missing"))
        self.note("alter a fresh group", *await self.alter("fresh", 1))
        self.note("delete offsets of a missing topic", *await self.forget(GROUP, "missing"))
        self.note("delete offsets of no group", *await self.forget("nope"))
        await self.change_offsets("without members")
        response = await self.ask(42, 2, "DeleteGroupsRequest", groups_names=["nope"])
        self.note("delete a group that is missing", response.results[0].error_code)

    async def alter(self, group: str, offset: int, *, index: int = 0, name: str = "t") -> list[Any]:
        module = schema(91, 0).request_module
        place = entity(
            module,
            "AlterShareGroupOffsetsRequestPartition",
            partition_index=index,
            start_offset=offset,
        )
        topic = entity(
            module, "AlterShareGroupOffsetsRequestTopic", topic_name=name, partitions=[place]
        )
        response = await self.ask(
            91, 0, "AlterShareGroupOffsetsRequest", group_id=group, topics=[topic]
        )
        codes = [one.error_code for topic in response.responses for one in topic.partitions]
        return [response.error_code, codes]

    async def forget(self, group: str, name: str = "t") -> list[Any]:
        module = schema(92, 0).request_module
        topic = entity(module, "DeleteShareGroupOffsetsRequestTopic", topic_name=name)
        response = await self.ask(
            92, 0, "DeleteShareGroupOffsetsRequest", group_id=group, topics=[topic]
        )
        return [response.error_code, [topic.error_code for topic in response.responses]]


def _acquired(partition: Any) -> list[list[int]]:
    return [
        [one.first_offset, one.last_offset, one.delivery_count]
        for one in partition.acquired_records
    ]


async def conversation(port: int) -> Lines:
    """Have the conversation with the broker on a port of this machine."""
    try:
        client = await Client.connect_to(port)
        lines = await Conversation(client, port).hold()
    finally:
        await close_clients()
    return list(json.loads(json.dumps(lines)))


def record() -> None:
    """Have the conversation with Kafka, and keep it."""
    with tempfile.TemporaryDirectory() as folder, kafka_server(Path(folder)) as server:
        lines = asyncio.run(conversation(server.port))
    text = ",\n".join(json.dumps(line) for line in lines)
    RECORDED.write_text(f"[\n{text}\n]\n")


if __name__ == "__main__":
    record()
