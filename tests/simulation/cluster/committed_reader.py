"""A reader of committed records, as Kafka's consumers are: it fetches from leaders up to the last
stable offset, and leaves out what the aborted transactions of a response wrote.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode

from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
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
        ErrorCode.kafka_storage_error,
    }
)


class Fetched(NamedTuple):
    """The response of a leader: committed records, (partition, offset, value) each, and the ends
    of the partition.
    """

    records: list[tuple[int, int, str]]
    last_stable_offset: int
    high_watermark: int


class CommittedReader:
    """Reads partitions of one topic; `position` is where it goes on in each."""

    def __init__(self, wire: ClientWire, topic: str, position: dict[int, int]) -> None:
        self.position = position
        self._wire = wire
        self._topic = topic

    async def fetch(self, partition: int) -> Fetched | None:
        """Fetch once and go on; None where no leader responds with records or ends."""
        where = self._wire.leader(self._topic, partition)
        if where is None:
            return None
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
            )
        except (OSError, TimeoutError):
            return None
        found = response.responses[0].partitions[0]
        if found.error_code in _PASSING:
            return None
        if found.error_code is not ErrorCode.none:
            raise Violation(f"a reader got {found.error_code.name}")
        if not 0 <= found.last_stable_offset <= found.high_watermark:
            raise Violation(
                f"the last stable offset {found.last_stable_offset} is beyond the high watermark "
                f"{found.high_watermark}"
            )
        return Fetched(
            list(self._committed(partition, found)), found.last_stable_offset, found.high_watermark
        )

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
