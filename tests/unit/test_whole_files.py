"""A file is read whole or is an error, and what Python cannot hold costs its row alone."""

import gzip
import os
import random
from datetime import date
from pathlib import Path
from typing import Any, Literal

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from lakehead.connectors.runtime.errors import BadInput, InputChanged, InputReplaced
from lakehead.connectors.runtime.interfaces import DeadLetter, Position, Record
from lakehead.connectors.settings import FilesSettings
from lakehead.connectors.sources.files.source import FilesSource
from lakehead.storage.clock import SystemClock

LINES = [b'{"n":%d,"pad":"%d"}\n' % (n, n * 7919**3) for n in range(3000)]


class Reading:
    """Reads a folder with positions in memory, as a run that keeps each batch does."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.path = path
        self.known: dict[str, Position] = {}
        self.records: list[Record] = []
        self.letters: list[DeadLetter] = []
        self.settings = settings

    def run(self, batches_max: int = 10**9) -> "Reading":
        source = FilesSource(
            FilesSettings(path=str(self.path), **self.settings), SystemClock(), lambda _: None
        )
        for work in source.work(lambda partition: self.known.get(partition["file"])):
            for count, batch in enumerate(source.read(work, self.known.get(work.name)), 1):
                self.records += batch.records
                self.letters += batch.letters
                self.known[work.name] = batch.position
                if count == batches_max:
                    break
        return self

    def numbers(self) -> list[int]:
        return [msgspec.json.decode(one.value or b"")["n"] for one in self.records]

    @property
    def is_done(self) -> bool:
        return any(position["done"] for position in self.known.values())


def packed(suffix: str, parts: list[bytes]) -> bytes:
    """Members or frames, each of blocks that end with lines."""
    if suffix == ".gz":
        return b"".join(map(gzip.compress, parts))
    found = b""
    for part in parts:
        writer = zstandard.ZstdCompressor(level=1, write_checksum=True).compressobj()
        for start in range(0, len(part), 4000):
            found += writer.compress(part[start : start + 4000])
            found += writer.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
        found += writer.flush()
    return found


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_each_beginning_of_a_compressed_file_is_an_error_and_nothing_of_it_is_read(
    tmp_path: Path, suffix: str, kind: str
) -> None:
    lines = LINES if kind == "jsonl" else [b"n\n", *(b"%d\n" % n for n in range(3000))]
    parts = [b"".join(lines[:1000]), b"".join(lines[1000:])]
    whole = packed(suffix, parts)
    first = len(packed(suffix, parts[:1]))
    path = tmp_path / f"a.{kind}{suffix}"
    rng = random.Random(17)
    cuts = {
        1,
        first - 1,
        first + 1,
        len(whole) - 1,
        *(rng.randrange(1, len(whole)) for _ in "x" * 40),
    }
    for cut in sorted(cuts - {first}):
        path.write_bytes(whole[:cut])
        reading = Reading(tmp_path)
        with pytest.raises(BadInput, match=rf"{path.name} cannot be unpacked at byte \d+ of {cut}"):
            reading.run()
        assert (reading.records, reading.letters, reading.is_done) == ([], [], False)
        path.write_bytes(whole)  # the rest has come: it is read without advice
        if cut in {1, len(whole) - 1}:
            assert len(reading.run().records) == 3000


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_a_damaged_compressed_file_is_an_error(tmp_path: Path, suffix: str) -> None:
    body = bytearray(packed(suffix, [b"".join(LINES)]))
    body[len(body) // 2] ^= 0x55
    (tmp_path / f"a.jsonl{suffix}").write_bytes(body)
    reading = Reading(tmp_path)
    with pytest.raises(BadInput, match="cannot be unpacked at byte"):
        reading.run()
    assert reading.records == []


@pytest.mark.parametrize("size", [0, 1, 3])
def test_a_compressed_file_of_many_frames_is_one_text(tmp_path: Path, size: int) -> None:
    frames = b"".join(zstandard.compress(b"".join(LINES[n : n + 3])) for n in range(0, 3000, 3))
    skippable = b"\x50\x2a\x4d\x18" + (size).to_bytes(4, "little") + b"x" * size
    (tmp_path / "a.jsonl.zst").write_bytes(skippable + frames + skippable)
    assert Reading(tmp_path).run().numbers() == list(range(3000))


@pytest.mark.parametrize(
    ("name", "whole"),
    [
        ("a.jsonl", b'{"n":1}\n{"n":2,"t":"\xc3\xa4"}'),
        ("a.csv", b'n,t\n1,x\n2,"y\n z"'),
    ],
)
def test_text_that_ends_in_a_row_is_an_error_with_its_byte(
    tmp_path: Path, name: str, whole: bytes
) -> None:
    path = tmp_path / name
    begun = whole.rindex(b"2")
    for cut in range(begun + 1, len(whole)):
        if whole[:cut].endswith((b"2,", b"\n")):
            continue  # a row with an empty field; a line that is ended, and so one bad line
        path.write_bytes(whole[:cut])
        reading = Reading(tmp_path)
        with pytest.raises(BadInput, match=rf"{name} ends too early, at byte {cut} in line"):
            reading.run()
        assert not reading.is_done
        path.write_bytes(whole)
        assert reading.run().numbers() in ([1, 2], ["1", "2"])


def test_a_bad_last_line_that_is_ended_is_one_bad_line(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"n":1}\n{"n":\n')
    (tmp_path / "b.jsonl").write_bytes(b'{"n":2}\nnone')
    (tmp_path / "c.csv").write_bytes(b"n,t\n1\n")
    reading = Reading(tmp_path).run()
    assert reading.numbers() == [1, 2]
    assert [letter.place.rpartition("/")[2] for letter in reading.letters] == [
        *("a.jsonl, line 2", "b.jsonl, line 2", "c.csv, line 2")
    ]


@pytest.mark.parametrize("changed", ["fail", "append", "reread"])
@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
def test_a_file_that_is_replaced_while_it_is_read_is_never_mixed(
    tmp_path: Path, changed: Literal["fail", "append", "reread"], name: str
) -> None:
    header = b"n,pad\n" if name.endswith("csv") else b""
    line = b"%d,%s\n" if header else b'{"n":%d,"pad":"%s"}\n'
    body = [b"".join(line % (n, who * 60) for n in range(120_000)) for who in (b"o", b"w")]
    path = tmp_path / name
    path.write_bytes(header + body[0])
    source = FilesSource(
        FilesSettings(path=str(tmp_path), changed=changed), SystemClock(), lambda _: None
    )
    (work,) = source.work(lambda _: None)
    batches = source.read(work, None)
    found = list(next(batches).records)
    (tmp_path / "new").write_bytes(header + body[1])
    os.utime(tmp_path / "new", ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    (tmp_path / "new").replace(path)  # as large and as old
    with pytest.raises(InputReplaced, match=rf"{name} was written or replaced while it was read"):
        for batch in batches:
            found += batch.records
    assert all(b"w" not in (record.value or b"") for record in found)


def test_a_file_of_the_same_name_size_and_time_is_another(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n":1}\n')
    reading = Reading(tmp_path).run()
    (tmp_path / "new").write_bytes(b'{"n":2}\n')
    os.utime(tmp_path / "new", ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    (tmp_path / "new").replace(path)
    with pytest.raises(InputChanged, match="restore the part that was read"):
        reading.run()


@pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
@pytest.mark.parametrize("batches", [1, 10**9])
def test_the_advice_to_append_can_be_followed(tmp_path: Path, name: str, batches: int) -> None:
    is_csv = name.endswith("csv")
    lines = [b"%d,x\n" % n if is_csv else b'{"n":%d}\n' % n for n in range(5000)]
    path = tmp_path / name
    path.write_bytes((b"n,t\n" if is_csv else b"") + b"".join(lines[:4000]))
    reading = Reading(tmp_path, types={"n": "integer"} if is_csv else {}).run(batches)
    with path.open("ab") as file:
        file.writelines(lines[4000:])
    with pytest.raises(InputChanged, match='set changed = "append" since lines were added to it'):
        reading.run()
    reading.settings["changed"] = "append"
    assert reading.run().numbers() == list(range(5000))
    path.write_bytes(path.read_bytes()[1:] + b"\n")
    reading.settings["changed"] = "fail"
    with pytest.raises(InputChanged, match=r"restore the part that was read, or give it .*reread"):
        reading.run()


def test_a_file_of_which_nothing_was_read_may_become_another(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"")
    reading = Reading(tmp_path).run()
    assert reading.is_done
    path.write_bytes(b'{"n":1}\n')
    assert reading.run().numbers() == [1]


@given(st.binary(max_size=40))
def test_no_line_of_json_is_more_than_one_letter(tmp_path_factory: Any, line: bytes) -> None:
    folder = tmp_path_factory.mktemp("lines")
    line = line.replace(b"\n", b"")
    (folder / "a.jsonl").write_bytes(b'{"n":1}\n{"n":"' + line + b'"}\n{"n":3}\n')
    reading = Reading(folder, key=("n",)).run()
    assert len(reading.records) + len(reading.letters) == 3
    assert [record.key for record in reading.records][:1] == [b"1"]
    assert reading.records[-1].key == b"3"


@pytest.mark.parametrize(
    "line", [b'"\xff"', b'{"a":"\xc3\x28"}', b"1e999", b"9" * 5000, b"[" * 5000, b'{"a":"\\ud800"}']
)
def test_a_line_that_is_no_json_costs_itself_alone(tmp_path: Path, line: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"n":1}\n' + line + b'\n{"n":3}\n')
    reading = Reading(tmp_path, line_bytes_max=100_000).run()
    assert reading.is_done
    if reading.letters:
        (letter,) = reading.letters
        assert letter.place.endswith("a.jsonl, line 2")
        assert letter.raw == line
    assert len(reading.records) + len(reading.letters) == 3


def test_values_that_python_has_not_cost_their_rows(tmp_path: Path) -> None:
    days = pa.array([0, 3_000_000, 1, -800_000, 2], pa.int32()).cast(pa.date32())
    micros = pa.array([0, 1, 2**62, 3, 4], pa.int64()).cast(pa.timestamp("us"))
    zoned = pa.array([0, 1, 2, 3, -(2**62)], pa.int64()).cast(pa.timestamp("us", "UTC"))
    inner = pa.array([[0], [1], [2], [3], [4]], pa.list_(pa.date32()))
    table = pa.table({"n": range(5), "d": days, "t": micros, "z": zoned, "l": inner})
    pq.write_table(table, tmp_path / "a.parquet")
    reading = Reading(tmp_path, key=("n",)).run()
    assert [record.key for record in reading.records] == [b"0"]
    assert [letter.place.rpartition(" ")[2] for letter in reading.letters] == list("2345")
    assert "column d: '10183-09-21' is not a valid value" in reading.letters[0].reason
    assert msgspec.json.decode(reading.letters[0].raw)["n"] == 1
    assert reading.is_done


def test_text_of_parquet_that_is_not_utf_8_costs_its_row(tmp_path: Path) -> None:
    text = pa.StringArray.from_buffers(
        3, pa.py_buffer(b"\0\0\0\0\1\0\0\0\2\0\0\0\3\0\0\0"), pa.py_buffer(b"a\xffc")
    )
    pq.write_table(pa.table({"n": [1, 2, 3], "t": text}), tmp_path / "a.parquet")
    reading = Reading(tmp_path).run()
    assert reading.numbers() == [1, 3]
    assert [letter.place.rpartition(" ")[2] for letter in reading.letters] == ["2"]


def test_the_last_days_of_the_calendar_are_kept(tmp_path: Path) -> None:
    table = pa.table({"n": [1, 2], "d": [date(9999, 12, 31), date(1, 1, 1)]})
    pq.write_table(table, tmp_path / "a.parquet")
    rows = [msgspec.json.decode(one.value or b"")["d"] for one in Reading(tmp_path).run().records]
    assert rows == ["9999-12-31", "0001-01-01"]


@pytest.mark.parametrize("codec", ["none", "snappy", "zstd"])
@pytest.mark.parametrize("has_checksums", [True, False])
def test_nothing_is_read_of_parquet_with_a_damaged_page(
    tmp_path: Path, codec: str, has_checksums: bool
) -> None:
    """Of its last row group too, behind rows that could be read. Without checksums and without
    compression a page may hold other values, which nothing can tell.
    """
    path, rng = tmp_path / "a.parquet", random.Random(codec)
    table = pa.table({"n": range(20_000), "t": [f"{n * 7919**3}" for n in range(20_000)]})
    pq.write_table(
        table,
        path,
        row_group_size=5000,
        compression=codec,
        use_dictionary=False,
        write_page_checksum=has_checksums,
    )
    whole, last = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(3).column(1)
    start, end = last.data_page_offset, last.data_page_offset + last.total_compressed_size
    refused, tries = 0, 12 if has_checksums else 4
    for _ in range(tries):
        damaged, at = bytearray(whole), rng.randrange(start, end)
        damaged[at] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        reading, reason = Reading(tmp_path), ""
        try:
            reading.run()
        except BadInput as error:
            reason = str(error)
        if reason:
            assert "a.parquet cannot be read as Parquet, row group 3 from byte" in reason
            assert (reading.records, reading.letters, reading.is_done) == ([], [], False)
            refused += 1
        else:
            assert len(reading.records) + len(reading.letters) == 20_000
    assert refused >= (tries - 2 if has_checksums else 0), "a header may be hit, which has none"
    path.write_bytes(whole)
    assert len(Reading(tmp_path).run().records) == 20_000


def test_parquet_that_ends_too_early_is_an_error(tmp_path: Path) -> None:
    pq.write_table(pa.table({"n": range(1000)}), tmp_path / "a.parquet")
    body = (tmp_path / "a.parquet").read_bytes()
    for cut in (0, 3, len(body) // 2, len(body) - 1):
        (tmp_path / "a.parquet").write_bytes(body[:cut])
        reading = Reading(tmp_path)
        with pytest.raises(BadInput, match=r"a\.parquet cannot be read as Parquet"):
            reading.run()
        assert (reading.records, reading.is_done) == ([], False)


def test_line_ends_within_quotes_are_kept(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b'n,t\r\n1,"a\r\nb"\r\n2,"a\nb"\r\n3,c\r\n')
    rows = [msgspec.json.decode(one.value or b"")["t"] for one in Reading(tmp_path).run().records]
    assert rows == ["a\r\nb", "a\nb", "c"]


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("20260131", 1769817600000), ("2026-01-31", 1769817600000), ("1769817600000", 1769817600000)],
)
def test_a_date_of_eight_digits_is_no_number(tmp_path: Path, text: str, milliseconds: int) -> None:
    (tmp_path / "a.csv").write_text(f"t\n{text}\n20261331\n")
    reading = Reading(tmp_path, timestamp="t").run()
    assert [record.timestamp_ms for record in reading.records] == [milliseconds]
    assert [letter.place.rpartition(" ")[2] for letter in reading.letters] == ["3"]
