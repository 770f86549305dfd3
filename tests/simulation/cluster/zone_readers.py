"""Consumers in zones (KIP-392) in a simulated cluster: each names its rack to the leaders, and
fetches from the nodes that they name.

A record that such a node gives out is one that its leader has confirmed, and it stays where it was
seen, whichever nodes die (`Ledger`): nothing beyond the high watermark, nothing that a recovery
leaves out. A node that is fenced gives out nothing once its session has ended.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any
from uuid import UUID

from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.read_replicas import TailSource
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.broker.protocol.node_endpoints import Address
from lakehead.storage.format.record_batch import iter_headers
from lakehead.storage.metadata.state import StreamState
from tests.simulation.cluster.clients import Clients
from tests.simulation.cluster.topics import RESERVED
from tests.simulation.ledger import Violation

if TYPE_CHECKING:
    from tests.simulation.cluster.client_wire import ClientWire
    from tests.simulation.cluster.cluster_world import ClusterWorld

ZONES = ("zone-a", "zone-b")
_FETCH = (1, 13)
_SIZE = 64 << 10
_PASSING = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_id,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.offset_out_of_range,  # of a leader that has not recovered all yet
        ErrorCode.offset_not_available,
        ErrorCode.fenced_leader_epoch,
        ErrorCode.unknown_leader_epoch,
        ErrorCode.kafka_storage_error,
    }
)


class ZoneReaders(Clients):
    """Such consumers of one world, and the zones of its nodes. `tail` is their source of records
    that no object holds.
    """

    def __init__(self, world: ClusterWorld, seed: int) -> None:
        super().__init__(world, random.Random(f"zones of cluster {seed}"))
        self.tail = self.rng.choice(list(TailSource))
        self._readers = self.rng.choice([1, 2, 3])

    def rack_of(self, node_id: int) -> str:
        """Return the zone of a node."""
        return ZONES[node_id % len(ZONES)]

    def start(self) -> None:
        """Begin."""
        for number in range(self._readers):
            self.begin(self._read_on(ZONES[number % len(ZONES)]), f"reader {number} in zones")

    async def judge(self) -> None:
        """Do nothing: what they saw is judged as they see it, and with the ledger."""

    async def _read_on(self, rack: str) -> None:
        """Read one stream after the other, from somewhere on."""
        rng, world, wire = self.rng, self.world, self.wire()
        while not world.is_quiet:
            await asyncio.sleep(rng.expovariate(2.0))
            state = world.oracle.state
            streams = [
                stream
                for name in sorted(set(state.topics) - RESERVED)
                for stream in map(state.streams.__getitem__, state.topics[name].partitions)
                if stream.is_open
            ]
            if streams:
                await self._read(wire, rack, rng.choice(streams))
        wire.close()

    async def _read(self, wire: ClientWire, rack: str, stream: StreamState) -> None:
        """Read a stream from near its end for a while, as a consumer does that its leader sends to
        another node.
        """
        node = self.world.oracle.state.nodes[stream.node_id]
        leader = Address(node.host, node.port)
        position = max(0, self.world.ledger.stream(stream.stream_id).end - self.rng.randint(0, 20))
        where = leader
        for _ in range(self.rng.randint(2, 10)):
            found = await self._fetch(wire, where, rack, stream, position)
            if found is None:
                return
            if found.preferred_read_replica >= 0:
                home = self.world.oracle.state.nodes[found.preferred_read_replica]
                where = Address(home.host, home.port)
                continue
            position = self._take(where, stream, position, found, is_leader=where == leader)

    async def _fetch(
        self, wire: ClientWire, where: Address, rack: str, stream: StreamState, offset: int
    ) -> Any:
        """Fetch once; None where the consumer looks for the leader again."""
        module = schema(*_FETCH).request_module
        wanted = entity(
            module,
            "FetchPartition",
            partition=stream.partition,
            current_leader_epoch=stream.epoch,
            fetch_offset=offset,
            partition_max_bytes=_SIZE,
        )
        topic = entity(module, "FetchTopic", topic_id=UUID(stream.topic_id), partitions=[wanted])
        try:
            response = await wire.send(
                *(where, *_FETCH, "FetchRequest"),
                max_wait=500,
                min_bytes=1,
                max_bytes=_SIZE,
                topics=[topic],
                forgotten_topics_data=(),
                rack_id=rack,
            )
        except (OSError, TimeoutError):
            return None
        found = response.responses[0].partitions[0]
        if found.error_code in _PASSING:
            return None
        if found.error_code is not ErrorCode.none:
            raise Violation(f"a consumer in {rack} got {found.error_code.name}")
        return found

    def _take(
        self, where: Address, stream: StreamState, position: int, found: Any, *, is_leader: bool
    ) -> int:
        """Judge what a node gave out, and return where to read on."""
        world, stream_id = self.world, stream.stream_id
        member = world.member_at(where)
        world.judge.reads(member, stream_id, since_s=world.network.latency_s_max)
        data = memoryview(found.records or b"")
        for place, header in iter_headers(data):
            batch = data[place : place + header.size]
            world.ledger.saw(stream_id, [batch], max(position, header.base_offset))
            position = header.end_offset
            self.ends["leader" if is_leader else "read replica"] += 1
        if position > found.high_watermark:
            raise Violation(f"{member.name} gave out {stream_id} beyond {found.high_watermark}")
        leads = world.led(stream_id) if stream_id in world.oracle.state.streams else None
        if (
            leads is not None
            and leads[1].stream.epoch == stream.epoch
            and self.tail is not TailSource.WAL  # which may be ahead of its writer for a moment
            and found.high_watermark > leads[1].high_watermark
        ):
            raise Violation(
                f"{member.name} has {found.high_watermark} as the end of {stream_id}, its leader "
                f"{leads[1].high_watermark}"
            )
        return position
