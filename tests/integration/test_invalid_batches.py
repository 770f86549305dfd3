"""A batch that no reader can read, and a time that no column holds, stop nothing but themselves."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cramjam
import pytest
from deltalake import DeltaTable

import lakehead
from lakehead.lake.errors import InvalidRecord
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.table_run import RecordUnreadable
from lakehead.lake.offsets import offset_for_timestamp
from lakehead.lake.store_reader import store_reader
from lakehead.storage.errors import CorruptObject, SettingsError
from lakehead.storage.maintenance.configs import BROKER_DEFAULTS, MaintenanceValues
from lakehead.storage.maintenance.rules import due_of
from tests.support.declared_topics import configure
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import TestRecord, encode_batch, seal_batch

NOISE = b"\xff" * 40
UNLIMITED = "9223372036854775807"
BOMB = bytes(cramjam.zstd.compress(bytes(300 << 20)))
"""More than what a batch may inflate to."""


def good(*offsets: int, key: bytes = b"k") -> bytes:
    return encode_batch(
        [TestRecord(offset=n, key=b"%b%d" % (key, n), value=b'{"id":%d}' % n) for n in offsets]
    )


def invalid(first: int, count: int, *, body: bytes = NOISE, codec: int = 0) -> bytes:
    return seal_batch(
        body,
        base_offset=first,
        last_offset_delta=count - 1,
        record_count=count,
        attributes=codec,
    )


def strange(offset: int, milliseconds: int) -> bytes:
    """A batch of three, of which the one in the middle has a time of its own."""
    records = [
        TestRecord(
            offset=n,
            timestamp=milliseconds if n == offset else 1_700_000_000_000,
            key=b"k%d" % n,
            value=b'{"id":%d}' % n,
        )
        for n in range(offset - 1, offset + 2)
    ]
    return encode_batch(records)


class Cluster:
    """Topic `orders` of two partitions in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root / "store"
        self.table = root / "table"
        self._made = LakeCluster(str(self.root))
        self._made.create_topic("orders", 2)

    def write(self, first: Sequence[bytes], second: Sequence[bytes] = ()) -> str:
        batches = {("orders", 0): first, ("orders", 1): second}
        return self._made.write({id_: held for id_, held in batches.items() if held})

    def declare(self, on_error: str, **configs: str) -> None:
        declared = {"enable": "true", "value_format": "json", "path": str(self.table)}
        declared |= {"on_error": on_error, **configs}
        named = {f"lakehead.table.{n.replace('_', '.')}": text for n, text in declared.items()}
        configure(self.root, "orders", named)

    def catch_up(self) -> TableOutcome:
        told: list[TableOutcome] = []
        tables = DeclaredTables(str(self.root), workers=1)
        try:
            tables.catch_up(all_of_them=True, on_table=told.append)
        finally:
            tables.close()
        (outcome,) = told
        return outcome

    def rows(self) -> list[tuple[int, int]]:
        return places(self.table)

    def letters(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            DeltaTable(f"{self.table}__dlq").to_pyarrow_table().to_pylist()
        )
        return sorted(found, key=lambda one: (one["_partition"], one["_offset"]))


def places(table: Path) -> list[tuple[int, int]]:
    held = DeltaTable(table).to_pyarrow_table(columns=["_partition", "_offset"]).to_pydict()
    return sorted(zip(held["_partition"], held["_offset"], strict=True))


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize(
    "body", [(NOISE, 0), (NOISE, 4), (BOMB, 4)], ids=["records", "codec", "inflates"]
)
def test_a_batch_nobody_can_read_is_one_dead_letter_with_its_bytes(
    cluster: Cluster, body: tuple[bytes, int], mode: str
) -> None:
    lost = [
        invalid(3, 30, body=body[0], codec=body[1]),
        invalid(35, 1, body=body[0], codec=body[1]),
    ]
    cluster.write([good(0, 1, 2), lost[0], good(33, 34), lost[1]], [good(0, 1, key=b"p")])
    cluster.write([good(36)])
    cluster.declare("dead_letter", mode=mode)
    outcome = cluster.catch_up()
    assert outcome.error is None
    assert (outcome.lag.records, outcome.result.dead_letters) == (0, 2)
    assert cluster.rows() == [*((0, n) for n in (0, 1, 2, 33, 34, 36)), (1, 0), (1, 1)]
    letters = cluster.letters()
    assert [bytes(one["value"]) for one in letters] == lost
    assert [one["error_class"] for one in letters] == ["batch", "batch"]
    assert letters[0]["error"].startswith("record batch of offsets 3 to 32, 30 records: ")
    assert [(one["_topic"], one["_partition"], one["_offset"]) for one in letters] == [
        ("orders", 0, 3),
        ("orders", 0, 35),
    ]
    tables = DeclaredTables(str(cluster.root))
    replayed = tables.replay("orders")
    tables.close()
    assert (replayed.letters, replayed.replayed, replayed.left) == (2, 0, 2)
    assert cluster.letters() == letters


@pytest.mark.parametrize("on_error", ["dead_letter", "drop"])
def test_retention_goes_on_past_a_batch_that_cannot_be_read(
    cluster: Cluster, on_error: str
) -> None:
    def due() -> list[str]:
        catalog = store_reader(str(cluster.root)).open_catalog()
        values = MaintenanceValues(places=(BROKER_DEFAULTS,))
        works = due_of(catalog.state, catalog.topic("orders"), values, 10**15)
        return sorted(work.words for work in works)

    cluster.write([good(0, 1), invalid(2, 30)], [invalid(0, 5)])
    cluster.declare("pause", retention_wait_ms=UNLIMITED)
    assert isinstance(cluster.catch_up().error, RecordUnreadable)
    assert due() == ["trim to 2"]
    cluster.declare(on_error, retention_wait_ms=UNLIMITED)
    assert cluster.catch_up().error is None
    assert due() == ["trim to 32", "trim to 5"]


def test_dropped_batches_are_counted_by_their_records(cluster: Cluster) -> None:
    cluster.write([invalid(0, 7), good(7), invalid(8, 2)])
    cluster.declare("drop")
    outcome = cluster.catch_up()
    assert (outcome.error, outcome.result.dropped) == (None, 9)
    assert cluster.rows() == [(0, 7)]


def test_a_pause_names_the_batch_and_other_partitions_go_on(cluster: Cluster) -> None:
    cluster.write([good(0, 1), invalid(2, 30), good(32)], [good(0, 1, 2)])
    cluster.declare("pause")
    for _ in range(2):
        outcome = cluster.catch_up()
        assert isinstance(outcome.error, RecordUnreadable)
        said = str(outcome.error)
        assert said.startswith(
            "topic orders, partition 0, offsets 2 to 31: a batch of 30 records: 30 records do not "
        )
        assert all(way in said for way in ("dead_letter", "drop", "--from"))
        assert cluster.rows() == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2)]
    cluster.declare("dead_letter")
    assert cluster.catch_up().error is None
    assert cluster.rows()[-4:] == [(0, 32), (1, 0), (1, 1), (1, 2)]


def test_a_pause_is_at_the_first_of_a_value_and_a_batch(cluster: Cluster) -> None:
    bad_value = encode_batch([TestRecord(offset=1, value=b"{")])
    cluster.write([good(0), bad_value, invalid(2, 2), good(4)])
    cluster.declare("pause", schema="id bigint")
    assert "offset 1: " in str(cluster.catch_up().error)
    assert cluster.rows() == [(0, 0)]


TIMES = (-(2**62), 2**62, 10**17, 253_402_300_800_000, -62_135_596_800_001)
"""Beyond a column of microseconds; after 9999 and before 1, which a table does not hold either."""


@pytest.mark.parametrize("parts", ["", "day(_timestamp)"])
@pytest.mark.parametrize("mode", ["append", "upsert"])
def test_a_time_out_of_range_is_a_dead_letter_of_its_record_alone(
    cluster: Cluster, mode: str, parts: str
) -> None:
    batches = [strange(3 * n + 1, time) for n, time in enumerate(TIMES)]
    cluster.write(batches, [good(0, key=b"p")])
    cluster.declare("dead_letter", mode=mode, **{"partition_by": parts} if parts else {})
    outcome = cluster.catch_up()
    assert outcome.error is None
    assert cluster.rows() == [*((0, n) for n in range(15) if n % 3 != 1), (1, 0)]
    letters = cluster.letters()
    assert [one["_offset"] for one in letters] == [3 * n + 1 for n in range(len(TIMES))]
    for one, time in zip(letters, TIMES, strict=True):
        assert one["_timestamp"] is None
        assert (one["_key"], one["value"]) == (
            b"k%d" % one["_offset"],
            b'{"id":%d}' % one["_offset"],
        )
        assert f"the record's time, {time} ms since 1970," in one["error"]
    tables = DeclaredTables(str(cluster.root))
    assert tables.replay("orders").left == len(TIMES)
    tables.close()
    assert cluster.letters() == letters


def test_the_first_and_the_last_moment_of_the_calendar_are_rows(cluster: Cluster) -> None:
    edges = [strange(1, -62_135_596_800_000), strange(4, 253_402_300_799_999)]
    cluster.write(edges)
    cluster.declare("dead_letter", partition_by="day(_timestamp)")
    assert cluster.catch_up().error is None
    assert cluster.rows() == [(0, n) for n in range(6)]


def test_a_scan_has_one_option_for_batches_and_times(cluster: Cluster) -> None:
    cluster.write([good(0), invalid(1, 30), strange(32, 2**62)], [good(0)])
    place = str(cluster.root)
    with pytest.raises(InvalidRecord, match=r"topic orders, partition 0, offsets 1 to 30: .*"):
        lakehead.scan(place, "orders").read_all()

    def read(mode: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = (
            lakehead.scan(place, "orders", mode=mode).read_all().to_pylist()
        )
        return found

    assert [(row["partition"], row["offset"]) for row in read("dropMalformed")] == [
        *((0, n) for n in (0, 31, 33)),
        (1, 0),
    ]
    rows = read("PERMISSIVE")
    assert [row["offset"] for row in rows] == [0, 1, 31, 32, 33, 0]
    whole = {"topic": "orders", "partition": 0, "offset": 1}
    assert rows[1] == dict.fromkeys(rows[1], None) | whole
    assert rows[3]["timestamp"] is None
    assert (rows[3]["value"], rows[3]["timestampType"]) == (b'{"id":32}', 0)
    with pytest.raises(SettingsError, match="mode is FAILFAST, PERMISSIVE or DROPMALFORMED"):
        lakehead.scan(place, "orders", mode="ignore")  # type: ignore[arg-type]

    async def count() -> int:
        async with lakehead.scan_async(place, "orders", mode="DROPMALFORMED") as batches:
            return sum([batch.num_rows async for batch in batches])

    assert asyncio.run(count()) == 4


def test_offsets_are_looked_up_by_time_beside_what_cannot_be_read(cluster: Cluster) -> None:
    old = seal_batch(NOISE, base_offset=0, last_offset_delta=2, record_count=3, max_timestamp=5)
    cluster.write([old, strange(4, 2**62), invalid(6, 2), good(8)])
    reader = store_reader(str(cluster.root))
    log = reader.open_catalog().partitions("orders")[0]
    for time, offset in ((1, 0), (6, 3), (1_700_000_000_000, 3), (1_700_000_000_001, 4)):
        assert offset_for_timestamp(reader, log, time) == offset


def test_an_inferred_schema_is_that_of_what_can_be_read(cluster: Cluster) -> None:
    cluster.write([invalid(0, 30), good(30, 31)])
    cluster.declare("dead_letter")
    assert cluster.catch_up().error is None
    assert "id" in DeltaTable(cluster.table).to_pyarrow_table().column_names


def test_a_damaged_object_is_an_error_whatever_is_declared(cluster: Cluster) -> None:
    key = cluster.write([good(0, 1, 2)])
    path = cluster.root / key
    body = bytearray(path.read_bytes())
    body[10 + 33 + 70] ^= 1
    path.write_bytes(body)
    for on_error in ("dead_letter", "drop", "pause"):
        cluster.declare(on_error, schema="id bigint")
        assert isinstance(cluster.catch_up().error, CorruptObject)
    with pytest.raises(CorruptObject):
        lakehead.scan(str(cluster.root), "orders", mode="DROPMALFORMED").read_all()


FAR = [
    ("at timestamp, id bigint", "day(at)", b'{"id":%d,"at":"0000-01-01T00:00:00Z"}'),
    ("at timestamp, id bigint", "hour(at)", b'{"id":%d,"at":"0000-12-31T23:59:59Z"}'),
    ("at date, id bigint", "at", b'{"id":%d,"at":"0000-01-01"}'),
    ("at array<timestamp>, id bigint", "", b'{"id":%d,"at":["0000-01-01T00:00:00Z"]}'),
    ("at struct<b: timestamp>, id bigint", "", b'{"id":%d,"at":{"b":"0000-01-01T00:00:00Z"}}'),
    ("at string, id bigint", "at", b'{"id":%d,"at":"' + b"x" * 300 + b'"}'),
    ("at string, id bigint", "at", b'{"id":%d,"at":"' + "\u00fc".encode() * 100 + b'"}'),
]


@pytest.mark.parametrize("mode", ["append", "upsert"])
@pytest.mark.parametrize(("schema", "parts", "far"), FAR)
def test_a_value_beyond_its_type_or_its_folder_is_a_dead_letter_of_its_record(
    cluster: Cluster, schema: str, parts: str, far: bytes, mode: str
) -> None:
    near = {
        "day(at)": b'"2024-02-29T00:00:00Z"',
        "hour(at)": b'"9999-12-31T23:59:59.999999Z"',
        "at": b'"2024-02-29"',
    }
    if "string" in schema:
        near["at"] = b'"' + b"y" * 252 + b'"'
    values = [
        far % n if n == 1 else b'{"id":%d,"at":%b}' % (n, near.get(parts, b"null"))
        for n in range(3)
    ]
    records = [TestRecord(offset=n, key=b"k%d" % n, value=value) for n, value in enumerate(values)]
    cluster.write([encode_batch(records)])
    cluster.declare("dead_letter", schema=schema, partition_by=parts, mode=mode)
    assert cluster.catch_up().error is None
    assert cluster.rows() == [(0, 0), (0, 2)]
    (letter,) = cluster.letters()
    assert (letter["_offset"], letter["error_class"]) == (1, "misfit")
    assert letter["error"].startswith("field at: ")
    assert letter["value"] == values[1]
    DeltaTable(cluster.table).optimize.compact()
