"""Topics of millions of keyed records in seconds: one batch is encoded, and the digits of keys in
it are overwritten with others, all at once.
"""

import functools
import json
import random
import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from bench.lake._topics import OBJECT_BYTES, T0, Written
from lakehead.storage.format.partition_state import PartitionState
from lakehead.storage.format.record_batch import ATTRIBUTES_POSITION
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch

Ids = npt.NDArray[np.int64]

BATCH_RECORDS = 5000
FIRST_ID = 10_000_000
"""Ids have eight digits."""
SCHEMA = (
    "id bigint, customer bigint, city string, amount double, quantity int, note string, edition int"
)

_MARK = "@@@@@@@@"
_POWERS = 10 ** np.arange(len(_MARK) - 1, -1, -1)
_CRC_POSITION = 17
_CITIES = ("Oslo", "Lima", "Pune", "Baku", "Riga", "Kyiv", "Bonn", "Rome")


def write_puts(
    cluster: LakeCluster, topic: str, partition: int, first_offset: int, ids: Ids, *, edition: int
) -> Written:
    """Append a record for each id to a partition: JSON of seven fields, 143 bytes on average."""
    batches = _batches(_puts(edition), ids, first_offset)
    return _write(cluster, topic, partition, batches, len(ids))


def write_tombstones(
    cluster: LakeCluster, topic: str, partition: int, first_offset: int, ids: Ids
) -> Written:
    """Append a record with a null value for each id to a partition."""
    return _write(cluster, topic, partition, _batches(_tombstones(), ids, first_offset), len(ids))


@functools.lru_cache(maxsize=4)
def _puts(edition: int) -> tuple[TestRecord, ...]:
    rng = random.Random(7)
    return tuple(
        TestRecord(
            offset=number,
            timestamp=T0,
            key=_MARK.encode(),
            value=json.dumps(
                {
                    "id": _MARK,
                    "customer": rng.randrange(1_000_000),
                    "city": rng.choice(_CITIES),
                    "amount": round(rng.uniform(1, 500), 2),
                    "quantity": rng.randint(1, 12),
                    "note": rng.randbytes(16).hex(),
                    "edition": edition,
                }
            )
            .replace(f'"{_MARK}"', _MARK)
            .encode(),
        )
        for number in range(BATCH_RECORDS)
    )


@functools.lru_cache(maxsize=1)
def _tombstones() -> tuple[TestRecord, ...]:
    return tuple(
        TestRecord(offset=number, timestamp=T0, key=_MARK.encode())
        for number in range(BATCH_RECORDS)
    )


@functools.lru_cache(maxsize=8)
def _template(records: tuple[TestRecord, ...]) -> tuple[bytes, npt.NDArray[np.int64]]:
    """A batch, and where the digits of each record's id are in it: [record, place, digit]."""
    batch = encode_batch(records)
    found = np.array([match.start() for match in re.finditer(_MARK.encode(), batch)])
    places = found.reshape(len(records), -1, 1) + np.arange(len(_MARK))
    return batch, places


def _batches(records: tuple[TestRecord, ...], ids: Ids, first_offset: int) -> Iterator[bytes]:
    for start in range(0, len(ids), BATCH_RECORDS):
        chosen = ids[start : start + BATCH_RECORDS]
        template, places = _template(records[: len(chosen)])
        batch = np.frombuffer(bytearray(template), np.uint8)
        digits = chosen[:, None] // _POWERS % 10 + ord("0")
        batch[places] = digits[:, None, :].astype(np.uint8)
        sealed = bytearray(batch.tobytes())
        sealed[:8] = (first_offset + start).to_bytes(8, "big")
        crc = crc32c(memoryview(sealed)[ATTRIBUTES_POSITION:])
        sealed[_CRC_POSITION : _CRC_POSITION + 4] = crc.to_bytes(4, "big")
        yield bytes(sealed)


def _write(
    cluster: LakeCluster, topic: str, partition: int, batches: Iterator[bytes], records: int
) -> Written:
    stored = held_bytes = 0
    held: list[bytes] = []
    for batch in batches:
        held.append(batch)
        held_bytes += len(batch)
        if held_bytes >= OBJECT_BYTES:
            cluster.write({(topic, partition): held}, state=PartitionState())
            stored, held_bytes, held = stored + held_bytes, 0, []
    if held:
        cluster.write({(topic, partition): held}, state=PartitionState())
    stored += held_bytes
    return Written(records=records, value_bytes=stored, stored_bytes=stored)
