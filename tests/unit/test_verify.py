"""`verify`: what is unharmed passes; each kind of damage is found, named and located."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from crc32c import crc32c

from lakehead.lake.decode.decoder import BlockRange, RecordDecoder
from lakehead.lake.errors import InvalidRecord
from lakehead.storage.format.record_batch import patch, read_header
from lakehead.storage.format.record_check import RecordChecker
from lakehead.storage.format.record_kernel import RECORD_SIZE_MIN
from lakehead.storage.format.stream_object import (
    FOOTER,
    FOOTER_SIZE,
    Extension,
    encode_extension,
)
from lakehead.storage.jobs.compact_objects import JOB as COMPACT
from lakehead.storage.jobs.compact_objects import CompactObjectsOptions
from lakehead.storage.jobs.job import run_job
from lakehead.storage.jobs.verify import JOB as VERIFY
from lakehead.storage.jobs.verify import VerifyOptions, VerifyResult
from lakehead.storage.metadata.extents import Extents
from lakehead.storage.metadata.records import TopicConfig
from lakehead.storage.verification import catalog_damages
from tests.integration.test_compaction_crashes import in_log, maintain
from tests.support.command_line import CommandLine
from tests.support.lake_cluster import LakeCluster
from tests.support.record_batches import (
    TestRecord,
    block,
    compress,
    encode_batch,
    encode_record,
    seal_batch,
)
from tests.support.topic_writer import write_topic


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    for number in range(3):
        values = {
            p: [TestRecord(offset=0, key=b"k%d" % (n % 5), value=b"%d" % number) for n in range(20)]
            for p in range(2)
        }
        write_topic(tmp_path / "store", "t", values, partitions=2, batch_records=3, codec="zstd")
    return tmp_path


def verified(folder: Path, topic: str | None = None, sample: int = 100) -> VerifyResult:
    path = str(folder / "store")
    return run_job(VERIFY, path, VerifyOptions(topic=topic, sample_percent=sample))


def data_files(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "store" / "data").rglob("*") if path.is_file())


def test_what_is_unharmed_passes_before_and_after_every_job(cluster: Path) -> None:
    report = verified(cluster)
    assert report.damages == ()
    assert (report.objects, report.records) == (3, 120)
    run_job(COMPACT, str(cluster / "store"), CompactObjectsOptions(count_min=2))
    report = verified(cluster)
    assert (report.damages, report.objects, report.records) == ((), 2, 120)
    configs: dict[str, str | None] = {"cleanup.policy": "compact"}
    in_log(cluster, TopicConfig(topic_id=in_log(cluster).topics["t"].topic_id, configs=configs))
    assert maintain(cluster).returncode == 0
    report = verified(cluster)
    assert (report.damages, report.records) == ((), 10)


def test_any_byte_that_changes_is_found_where_it_is(cluster: Path) -> None:
    rng = random.Random(5)
    for _ in range(60):
        path = rng.choice(data_files(cluster))
        body = path.read_bytes()
        at = rng.randrange(len(body) - FOOTER_SIZE)
        changed = bytearray(body)
        changed[at] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
        report = verified(cluster)
        assert report.damages, f"byte {at} of {path}"
        for damage in report.damages:
            assert (damage.place.topic, damage.place.end_offset > damage.place.start_offset) == (
                "t",
                True,
            )
            assert path.as_posix().endswith(damage.object_key)
        path.write_bytes(body)
    assert verified(cluster).damages == ()


def test_objects_that_are_missing_or_cut_are_named(cluster: Path) -> None:
    first, second, _ = data_files(cluster)
    first.unlink()
    second.write_bytes(second.read_bytes()[:-100])
    found = {(damage.object_key, damage.what) for damage in verified(cluster).damages}
    assert {what for key, what in found if first.as_posix().endswith(key)} == {
        "the object is missing"
    }
    assert any(second.as_posix().endswith(key) for key, _ in found)
    places = [damage.place for damage in verified(cluster).damages]
    assert sorted((one.partition, one.start_offset) for one in places if one.partition == 0) == [
        (0, one.start_offset) for one in places if one.partition == 0
    ]


def test_a_batch_that_was_written_wrong_is_found_behind_right_checksums(tmp_path: Path) -> None:
    def batch(base: int, count: int) -> bytes:
        return encode_batch([TestRecord(offset=base + n, value=b"v") for n in range(count)])

    broken = bytearray(batch(3, 3))
    broken[-1] ^= 1
    wrong_base = bytearray(batch(6, 3))
    patch(wrong_base, 0, 6, 0)
    rig = LakeCluster(str(tmp_path / "store"))
    rig.create_topic("t")
    rig.write({("t", 0): [batch(0, 3), bytes(broken), bytes(wrong_base)]})
    (damage,) = verified(tmp_path).damages
    assert damage.what.endswith("the batch at offset 3 fails its own checksum")
    assert read_header(broken).base_offset == 3


def count_again(path: Path, counts: Sequence[int]) -> None:
    """Write other numbers of records into the index of an object, with right checksums."""
    body = bytearray(path.read_bytes())
    footer = list(FOOTER.unpack(body[-FOOTER_SIZE:]))
    start, size = footer[4:6]
    held = msgspec.msgpack.decode(body[start + 1 : start + size], type=Extension)
    extension = encode_extension(msgspec.structs.replace(held, item_record_counts=tuple(counts)))
    assert len(extension) == size
    body[start : start + size] = extension
    footer[7] = crc32c(extension)
    body[-FOOTER_SIZE:] = FOOTER.pack(*footer)
    path.write_bytes(body)


def test_a_wrong_count_of_records_in_an_index_is_found_with_object_and_offsets(
    cluster: Path,
) -> None:
    first, second, third = data_files(cluster)
    count_again(first, (20, 19))
    count_again(second, (21, 20))
    count_again(third, (20, -1))  # unknown, which leads to a read
    found = verified(cluster).damages
    assert len(found) == 2
    for path, partition, count in ((first, 1, 19), (second, 0, 21)):
        (damage,) = [one for one in found if path.as_posix().endswith(one.object_key)]
        place = damage.place
        assert (place.partition, place.end_offset - place.start_offset) == (partition, 20)
        assert f"its index counts {count} records, its batches have 20" in damage.what
        assert "unharmed" in damage.to_do


def test_the_metadata_alone_tell_of_gaps(cluster: Path) -> None:
    state = in_log(cluster)
    assert list(catalog_damages(state, None)) == []
    stream = state.streams[0]
    for extents, what in (
        (stream.extents[1:], "no object holds offsets 0 to 19"),
        (stream.extents[:2], "objects end at 40, the stream at 60"),
        ((stream.extents[0], stream.extents[2]), "offset 40 follows 20"),
    ):
        broken = replace(stream, extents=Extents.of(extents))
        damaged = replace(state, streams=state.streams.set(0, broken))
        assert what in [one.what for one in catalog_damages(damaged, "t")]


def test_the_command_says_what_and_where_and_fails(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lakehead = CommandLine(monkeypatch, capsys)
    path = ("--path", str(cluster))
    done = lakehead("verify", *path, "--json")
    assert (done.status, json.loads(done.out)["damages"]) == (0, [])
    assert json.loads(lakehead("verify", *path, "--dry-run", "--json").out)["objects_to_read"] == 3
    half = json.loads(lakehead("verify", *path, "--sample", "50", "--json").out)
    assert half["objects"] < 3
    damaged = data_files(cluster)[0]
    body = bytearray(damaged.read_bytes())
    body[100] ^= 1
    damaged.write_bytes(body)
    done = lakehead("verify", *path, "--json")
    assert done.status == 1
    (row,) = json.loads(done.out)["damages"]
    assert (row["topic"], row["partition"]) == ("t", 0)
    assert "kafka-delete-records.sh" in row["to_do"]
    shown = lakehead("verify", *path)
    assert shown.status == 1
    assert "fails its checksum" in shown.out
    assert "does not exist" in lakehead.fails("verify", *path, "--topic", "u")


def sealed(base: int, body: bytes, attributes: int = 0, count: int = 1) -> bytes:
    return seal_batch(
        body,
        base_offset=base,
        last_offset_delta=count - 1,
        record_count=count,
        attributes=attributes,
    )


def record(**fields: Any) -> bytes:
    return encode_record(TestRecord(offset=0, **fields), 0, 1_700_000_000_000)


NULL_HEADER_KEY = b"\x10\x00\x00\x00\x01\x01\x02\x01\x01"
INVALID = [
    (b"\xff" * 40, 0, 1, "record 0: a record's length is not a varint"),
    (record(value=b"v") * 2, 0, 1, "bytes after the last record"),
    (record(value=b"v" * 50)[:-1], 0, 1, "record 0: a record overruns its batch"),
    (NULL_HEADER_KEY, 0, 1, "a header's key overruns its record"),
    (record(value=b"v"), 0, 2, "2 records do not fit its size"),
    (b"not zstd", 4, 1, "not zstd"),
    (compress("zstd", b"\xff" * 40), 4, 1, "record 0: a record's length is not a varint"),
    (compress("gzip", record(value=b"v"))[:-9], 1, 1, "gzip"),
    (record(value=b"v"), 7, 1, "unknown codec 7"),
]


def test_batches_that_nothing_can_read_are_named_and_are_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Their bytes are what was produced, so no copy of the bucket has better ones."""
    rig = LakeCluster(str(tmp_path / "store"))
    rig.create_topic("t", partitions=2)
    good = [encode_batch([TestRecord(offset=0, value=b"v")])]
    bad: list[bytes] = []
    base = 0
    for body, attributes, count, _ in INVALID:
        bad.append(sealed(base, body, attributes, count))
        base += count
        bad.append(encode_batch([TestRecord(offset=base, value=b"after it")]))
        base += 1
    rig.write({("t", 0): good, ("t", 1): bad})
    report = verified(tmp_path)
    assert report.damages == ()
    assert (report.invalid_batches, report.invalid_times) == (len(INVALID), 0)
    assert [(one.place.topic, one.place.partition) for one in report.invalid] == [("t", 1)] * 9
    for one, (_, _, count, reason) in zip(report.invalid, INVALID, strict=True):
        assert reason in one.reason
        assert one.place.end_offset - one.place.start_offset == count
    lakehead = CommandLine(monkeypatch, capsys)
    done = lakehead("verify", "--path", str(tmp_path), "--json")
    shown = json.loads(done.out)
    assert (done.status, shown["damages"], shown["batches_that_cannot_be_read"]) == (0, [], 9)
    assert shown["invalid_batches"][0]["offsets"] == "0 to 0"
    shown = lakehead("verify", "--path", str(tmp_path))
    assert (shown.status, "not a varint" in shown.out) == (0, True)


def test_times_beyond_any_calendar_are_counted_apart_and_named(tmp_path: Path) -> None:
    rig = LakeCluster(str(tmp_path / "store"))
    rig.create_topic("t")
    late = [TestRecord(offset=n, timestamp=n * 10**17, value=b"v") for n in range(3)]
    rig.write({("t", 0): [encode_batch(late), encode_batch([TestRecord(offset=3)])]})
    report = verified(tmp_path)
    (found,) = report.invalid
    assert (report.damages, report.invalid_batches, report.invalid_times) == (
        (),
        0,
        1,
    )
    assert found.reason.startswith("2 of its records have times beyond")
    assert f"first offset 1 with {10**17} ms" in found.reason


def test_very_many_batches_that_cannot_be_read_are_all_counted_and_some_named(
    tmp_path: Path,
) -> None:
    rig = LakeCluster(str(tmp_path / "store"))
    rig.create_topic("t")
    rig.write({("t", 0): [sealed(n, b"\xff" * 40) for n in range(500)]})
    report = verified(tmp_path)
    assert report.invalid_batches == 500
    assert [one.place.start_offset for one in report.invalid] == list(range(20))


def test_a_batch_that_inflates_beyond_the_limit_is_named_and_the_next_is_read() -> None:
    checker = RecordChecker(inflated_size_max=2 << 20)
    for size, is_fine in ((1 << 20, True), (3 << 20, False), (1000, True)):
        body = compress("zstd", record(value=b"v" * size))
        batch = memoryview(sealed(0, body, 4))
        found = checker.check(read_header(batch), batch)
        assert (found is None) == is_fine
        assert found is None or found.reason == f"its records inflate to more than {2 << 20} bytes"


def test_verification_and_scans_agree_which_batches_can_be_read() -> None:
    """Bytes changed at random, sealed again: what a scan of all columns refuses, `verify` names."""
    rng = random.Random(9)
    headers = (("h", b"1"), ("i", None))
    plain = b"".join(
        encode_record(
            TestRecord(offset=n, key=b"k", value=b"value", headers=headers), 0, 1_700_000_000_000
        )
        for n in range(4)
    )
    checker, refused = RecordChecker(), 0
    for _ in range(400):
        body = bytearray(plain)
        for _ in range(rng.randrange(1, 3)):
            body[rng.randrange(len(body))] = rng.randrange(256)
        batch = memoryview(sealed(0, bytes(body), count=4))
        found = checker.check(read_header(batch), batch)
        is_readable = found is None
        assert is_readable == scan_reads(bytes(batch)), body.hex()
        refused += not is_readable
    assert 40 < refused < 390
    assert len(plain) > 4 * RECORD_SIZE_MIN


def scan_reads(batch: bytes) -> bool:
    source = BlockRange(
        key="k", position=0, stream_id=1, topic="t", partition=0, first_offset=0, end_offset=4
    )
    columns = ("offset", "timestamp", "key", "value", "headers")
    try:
        list(RecordDecoder(columns).decode(block([batch], stream_id=1), source))
    except InvalidRecord:
        return False
    return True
