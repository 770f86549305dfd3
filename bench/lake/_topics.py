"""Topics of gigabytes in seconds: a pool of batches is encoded once, then copied into objects with
other offsets and timestamps. No broker is needed, and no Python runs for each record.
"""

import functools
import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from crc32c import crc32c

from lakehead.storage.format.partition_state import PartitionState
from lakehead.storage.format.record_batch import ATTRIBUTES_POSITION
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import HEADER, TestRecord, encode_batch

MIB, GIB = 1 << 20, 1 << 30
OBJECT_BYTES = 128 * MIB
POOL_BYTES = 4 * MIB
"""Of values in the pool."""
T0 = 1_700_000_000_000

_TIMESTAMPS = struct.Struct(">qq")
_TIMESTAMPS_POSITION = 27
_CRC_POSITION = 17
_CITIES = ("Oslo", "Lima", "Pune", "Quito", "Turku", "Accra", "Busan", "Perth")


def documents(count: int, size: int) -> list[bytes]:
    """JSON of exactly `size` bytes: ids, an amount, and a filling that compresses to about half."""
    rng = random.Random(7)
    made = []
    for number in range(count):
        document = {
            "id": number,
            "customer": rng.randrange(100_000),
            "city": rng.choice(_CITIES),
            "note": "",
        }
        room = size - len(json.dumps(document))
        document["note"] = rng.randbytes(max(room, 0) // 2 + 1).hex()[: max(room, 0)]
        made.append(json.dumps(document).encode())
    return made


def orders(count: int, _size: int = 0) -> list[bytes]:
    """JSON objects of ten fields, about 270 bytes each."""
    rng = random.Random(7)
    return [
        json.dumps(
            {
                "order_id": 10_000_000 + number,
                "customer_id": rng.randrange(1_000_000),
                "placed_at": f"2026-{rng.randint(1, 12):02d}-{rng.randint(1, 28):02d}T12:34:56Z",
                "city": rng.choice(_CITIES),
                "amount": round(rng.uniform(1, 500), 2),
                "quantity": rng.randint(1, 12),
                "is_paid": rng.random() < 0.8,
                "discount": rng.choice((None, 0.05, 0.1)),
                "sku": f"sku-{rng.randrange(50_000):05d}",
                "comment": rng.randbytes(24).hex(),
            }
        ).encode()
        for number in range(count)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The form of a topic's records, and of its batches before compression."""

    value_bytes: int = 1024
    batch_bytes: int = 1_000_000
    codec: str = "none"
    values: Callable[[int, int], list[bytes]] = documents

    @property
    def title(self) -> str:
        """For a table."""
        size = "1 KiB" if self.value_bytes == 1024 else f"{self.value_bytes} B"
        return f"{size}, {self.batch_bytes // 1000} KB batches, {self.codec}"

    @property
    def plain(self) -> "Shape":
        """The same, uncompressed."""
        return replace(self, codec="none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Template:
    """A batch of the pool, at offset 0."""

    batch: bytes
    records: int
    value_bytes: int

    @property
    def body(self) -> bytes:
        """Its records, compressed if they are."""
        return self.batch[HEADER.size :]


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The content of a topic."""

    records: int
    value_bytes: int
    stored_bytes: int


@functools.lru_cache(maxsize=2)
def pool(shape: Shape, size: int = POOL_BYTES) -> tuple[Template, ...]:
    """Batches that hold `size` bytes of values in all."""
    count = max(size // shape.value_bytes, 1)
    values = shape.values(count, shape.value_bytes)
    taken = max(shape.batch_bytes // (shape.value_bytes + 32), 1)
    templates = []
    for first in range(0, count, taken):
        chosen = values[first : first + taken]
        records = [
            TestRecord(
                offset=number, timestamp=T0, key=b"key-%012d" % (first + number), value=value
            )
            for number, value in enumerate(chosen)
        ]
        templates.append(
            Template(
                batch=encode_batch(records, codec=shape.codec),
                records=len(chosen),
                value_bytes=sum(map(len, chosen)),
            )
        )
    return tuple(templates)


def write_topic(
    cluster: LakeCluster,
    topic: str,
    shape: Shape,
    *,
    size: int,
    partitions: int = 4,
    milliseconds: int = 0,
    object_bytes: int = OBJECT_BYTES,
) -> Written:
    """Make a topic with about `size` bytes of values, in objects of one partition each.

    Timestamps advance evenly in each partition, by `milliseconds` from its start to its end.
    """
    cluster.create_topic(topic, partitions)
    templates = pool(shape)
    writer = _TopicWriter(cluster, topic, templates, size // partitions, milliseconds, object_bytes)
    done = [writer.write_partition(partition) for partition in range(partitions)]
    return Written(
        records=sum(one.records for one in done),
        value_bytes=sum(one.value_bytes for one in done),
        stored_bytes=sum(one.stored_bytes for one in done),
    )


class _TopicWriter:
    def __init__(
        self,
        cluster: LakeCluster,
        topic: str,
        templates: Sequence[Template],
        partition_bytes: int,
        milliseconds: int,
        object_bytes: int,
    ) -> None:
        self._cluster = cluster
        self._topic = topic
        self._templates = templates
        self._partition_bytes = partition_bytes
        self._milliseconds = milliseconds
        self._object_bytes = object_bytes

    def write_partition(self, partition: int) -> Written:
        offset = values = stored = held = 0
        batches: list[bytes] = []
        number = partition  # partitions begin at different places of the pool
        while values < self._partition_bytes:
            template = self._templates[number % len(self._templates)]
            stamp = T0 + values * self._milliseconds // self._partition_bytes
            batches.append(_placed(template.batch, offset, stamp))
            number += 1
            offset += template.records
            values += template.value_bytes
            held += len(template.batch)
            if held >= self._object_bytes:
                self._write(partition, batches)
                stored, held, batches = stored + held, 0, []
        if batches:
            self._write(partition, batches)
        return Written(records=offset, value_bytes=values, stored_bytes=stored + held)

    def _write(self, partition: int, batches: Sequence[bytes]) -> None:
        self._cluster.write({(self._topic, partition): batches}, state=PartitionState())


def _placed(template: bytes, offset: int, stamp: int) -> bytes:
    """The batch at an offset and at a time."""
    batch = bytearray(template)
    batch[:8] = offset.to_bytes(8, "big")
    _TIMESTAMPS.pack_into(batch, _TIMESTAMPS_POSITION, stamp, stamp)
    crc = crc32c(memoryview(batch)[ATTRIBUTES_POSITION:])
    batch[_CRC_POSITION : _CRC_POSITION + 4] = crc.to_bytes(4, "big")
    return bytes(batch)
