"""A reader of committed records, as Kafka's consumers are: it fetches up to the last stable offset,
from leaders or from the nodes of its rack that these name, and leaves out what the aborted
transactions of a response wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.broker.protocol.node_endpoints import Address
from lakehead.storage.format.control_batch import read_marker
from lakehead.storage.format.record_batch import iter_headers
from lakehead.storage.format.records import iter_kafka_records
from tests.simulation.cluster.client_wire import ClientWire
from tests.simulation.ledger import Violation

_KEY, _VERSION = 1, 12
_SIZE = 64 << 10
_PASSING = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.offset_out_of_range,  # of a leader that has not recovered all yet, or is gone
        ErrorCode.offset_not_available,  # of a read replica that lags behind
        ErrorCode.kafka_storage_error,
    }
)


class Fetched(NamedTuple):
    """The response of a node: committed records, (partition, offset, value) each, and the ends of
    the partition.
    """

    records: list[tuple[int, int, str]]
    last_stable_offset: int
    high_watermark: int


class CommittedReader:
    """Reads partitions of one topic; `position` is where it goes on in each. Without a rack it
    reads from leaders alone.
    """

    def __init__(
        self, wire: ClientWire, topic: str, position: dict[int, int], rack: str = ""
    ) -> None:
        self.position = position
        self._wire = wire
        self._topic = topic
        self._rack = rack
        self._replicas: dict[int, Address] = {}
        """By partition: the node that its leader named."""

    def reads_from_replica(self, partition: int) -> bool:
        """Return true if the next fetch goes to a node that the leader named."""
        return partition in self._replicas

    async def fetch(self, partition: int) -> Fetched | None:
        """Fetch once and go on; None where no node responds with records or ends. Then the next
        fetch goes to the leader, or to the node that this one has named.
        """
        replica = self._replicas.pop(partition, None)
        where = replica or self._wire.leader(self._topic, partition)
        found = None if where is None else await self._send(where, partition)
        if found is None:
            return None
        if found.preferred_read_replica >= 0:
            node = self._wire.state.nodes[found.preferred_read_replica]
            self._replicas[partition] = Address(node.host, node.port)
            return None
        if replica is not None:
            self._replicas[partition] = replica
        if not 0 <= found.last_stable_offset <= found.high_watermark:
            raise Violation(
                f"the last stable offset {found.last_stable_offset} is beyond the high watermark "
                f"{found.high_watermark}"
            )
        return Fetched(
            list(self._committed(partition, found)), found.last_stable_offset, found.high_watermark
        )

    async def _send(self, where: Address, partition: int) -> Any:
        """Send a request, and return the response for the partition; None where the consumer looks
        for the leader again.
        """
        module = schema(_KEY, _VERSION).request_module
        wanted = entity(
            module,
            "FetchPartition",
            partition=partition,
            fetch_offset=self.position[partition],
            partition_max_bytes=_SIZE,
        )
        topic = entity(module, "FetchTopic", topic=self._topic, partitions=[wanted])
        try:
            response = await self._wire.send(
                *(where, _KEY, _VERSION, "FetchRequest"),
                replica_id=-1,
                max_wait=300,
                min_bytes=1,
                max_bytes=_SIZE,
                isolation_level=1,
                topics=[topic],
                forgotten_topics_data=(),
                rack_id=self._rack,
            )
        except (OSError, TimeoutError):
            return None
        found = response.responses[0].partitions[0]
        if found.error_code in _PASSING:
            return None
        if found.error_code is not ErrorCode.none:
            raise Violation(f"a reader got {found.error_code.name}")
        return found

    def _committed(self, partition: int, found: Any) -> Iterator[tuple[int, int, str]]:
        """Yield the committed records of a response, and move the position behind them."""
        aborted = sorted(
            ((one.first_offset, one.producer_id) for one in found.aborted_transactions or ()),
            reverse=True,
        )
        open_aborted: set[int] = set()
        data = memoryview(found.records or b"")
        for place, header in iter_headers(data):
            while aborted and aborted[-1][0] < header.end_offset:
                open_aborted.add(aborted.pop()[1])
            batch = data[place : place + header.size]
            position = self.position[partition]
            self.position[partition] = max(position, header.end_offset)
            if header.is_control:
                marker = read_marker(batch)
                if marker is not None and not marker.is_commit:
                    open_aborted.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in open_aborted):
                for record in iter_kafka_records(batch):
                    if record.offset >= position:
                        yield partition, record.offset, (record.value or b"").decode()
