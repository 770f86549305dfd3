"""The files source alone: which files, from where, and what is refused."""

import gzip
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from bench.s3_server import S3Server
from lakehead.connectors.runtime.errors import BadInput, ConnectorError, InputChanged
from lakehead.connectors.runtime.interfaces import Batch, Position, Work
from lakehead.connectors.settings import FilesSettings
from lakehead.connectors.sources.files.formats import lines
from lakehead.connectors.sources.files.source import FilesSource
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError
from lakehead.storage.object_store.s3.client import object_client
from lakehead.storage.object_store.s3.settings import parse_uri


class Reader:
    """Reads a place as a run does, with positions in memory."""

    def __init__(self, path: object, **settings: Any) -> None:
        self.known: dict[str, Position] = {}
        self._settings = FilesSettings(path=str(path), **settings)

    def works(self) -> list[str]:
        return [Path(work.name).name for work in self._work(self._source())]

    def batches(self) -> list[Batch]:
        source = self._source()
        found = []
        for work in self._work(source):
            for batch in source.read(work, self.known.get(work.partition["file"])):
                found.append(batch)
                self.known[work.partition["file"]] = batch.position
        return found

    def values(self) -> list[Any]:
        batches = self.batches()
        return [msgspec.json.decode(r.value or b"") for batch in batches for r in batch.records]

    def _source(self) -> FilesSource:
        def pause(_: float) -> None:
            pytest.fail("nothing here is worth waiting for")

        return FilesSource(self._settings, SystemClock(), pause)

    def _work(self, source: FilesSource) -> list[Work]:
        return list(source.work(lambda partition: self.known.get(partition["file"])))


def test_files_are_read_in_order_once(tmp_path: Path) -> None:
    (tmp_path / "b.jsonl").write_bytes(b'{"n":2}\n')
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "c.ndjson").write_bytes(b'{"n":1}\n\n')
    (tmp_path / "_unfinished.jsonl").write_bytes(b"{")
    (tmp_path / "readme.txt").write_bytes(b"no")
    reader = Reader(tmp_path)
    assert reader.values() == [{"n": 1}, {"n": 2}]
    assert reader.works() == []
    (tmp_path / "0.jsonl").write_bytes(b'{"n":0}')
    assert reader.values() == [{"n": 0}]


def test_patterns_and_single_files(tmp_path: Path) -> None:
    for name in ("2026-01/a.csv", "2026-01/b.jsonl", "2026-02/x/a.csv", "2027-01/a.csv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert len(Reader(tmp_path / "2026-*" / "*.csv").works()) == 1
    assert len(Reader(tmp_path / "2026-*" / "**" / "*.csv").works()) == 2
    assert len(Reader(tmp_path / "2026-*").works()) == 3
    assert Reader(tmp_path / "2026-01" / "b.jsonl").works() == ["b.jsonl"]
    assert Reader(f"file:{tmp_path}/2027-01/").works() == ["a.csv"]


@pytest.mark.parametrize("key", ["app.log", "logs/app", "logs/2026/app.log"])
def test_an_object_without_a_known_suffix_is_read(key: str, s3_server: S3Server) -> None:
    """A path in a bucket is a prefix, unless there is an object of that name alone."""
    bucket = object_client(parse_uri(s3_server.uri))
    for name in (key, "logs/appendix", "other/app.log"):
        obstore.put(bucket, name, json.dumps({"n": name}).encode())
    reader = Reader(f"{s3_server.uri}/{key}", format="json")
    assert reader.values() == [{"n": key}]
    assert reader.values() == []
    assert Reader(f"{s3_server.uri}/other", format="json").values() == [{"n": "other/app.log"}]
    assert Reader(f"{s3_server.uri}/app.lo", format="json").works() == []


def test_a_file_whose_name_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"n":1}\n')
    (tmp_path / "b.jsonl#7").write_bytes(b'{"n":2}\n')
    reader = Reader(tmp_path, format="json")
    with pytest.raises(BadInput, match=r"b.jsonl#7: .* rename it"):
        reader.values()
    assert set(reader.known) == {str(tmp_path / "a.jsonl")}, "its neighbour was read"


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_compressed_files_go_on_where_they_were(tmp_path: Path, suffix: str) -> None:
    lines = [b'{"n":%d}\n' % n for n in range(5000)]
    pack = gzip.compress if suffix == ".gz" else zstandard.compress
    # Two members: what is appended to a compressed file is one more.
    packed = pack(b"".join(lines[:1000])) + pack(b"".join(lines[1000:]))
    (tmp_path / f"a.jsonl{suffix}").write_bytes(packed)
    whole = Reader(tmp_path)
    batches = whole.batches()
    assert sum(len(batch.records) for batch in batches) == 5000
    assert len(batches) > 2
    again = Reader(tmp_path)
    again.known = {str(tmp_path / f"a.jsonl{suffix}"): batches[0].position}
    assert again.values() == [{"n": n} for n in range(len(batches[0].records), 5000)]


def test_parquet_rows_go_on_where_they_were(tmp_path: Path) -> None:
    table = pa.table(
        {
            "n": list(range(4500)),
            "at": pa.array([n * 10**9 + 1 for n in range(4500)], pa.timestamp("ns", "UTC")),
            "b": [b"\x00\xff"] * 4500,
        }
    )
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=1000)
    reader = Reader(tmp_path, key=("n",), timestamp="at")
    batches = reader.batches()
    records = [record for batch in batches for record in batch.records]
    assert [record.key for record in records] == [b"%d" % n for n in range(4500)]
    assert [record.timestamp_ms for record in records] == [n * 1000 for n in range(4500)]
    assert msgspec.json.decode(records[1].value or b"") == {
        "n": 1,
        "at": "1970-01-01T00:00:01.000000001+00:00",
        "b": "AP8=",
    }
    again = Reader(tmp_path)
    again.known = {str(tmp_path / "a.parquet"): batches[0].position}
    assert [row["n"] for row in again.values()] == list(range(len(batches[0].records), 4500))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 this is none PAR1")
    with pytest.raises(BadInput, match=r"b\.parquet cannot be read as Parquet"):
        reader.batches()


def test_a_file_that_was_changed_is_refused_unless_it_was_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"n":1}\n{"n":2')
    growing = Reader(tmp_path, changed="append")
    assert growing.values() == [{"n": 1}]  # the second line may not have been written whole
    path.write_bytes(b'{"n":1}\n{"n":2}\n{"n":3}\n')
    assert growing.values() == [{"n": 2}, {"n": 3}]
    assert growing.works() == []
    path.write_bytes(b'{"n":9}\n{"n":2}\n{"n":3}\n{"n":4}\n')
    with pytest.raises(InputChanged, match="restore the part that was read"):
        growing.batches()
    again = Reader(tmp_path, changed="reread")
    again.known = growing.known
    assert len(again.values()) == 4
    assert again.works() == []


def test_a_growing_csv_waits_for_a_quote_to_close(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b'id,text\n1,"two\n')
    reader = Reader(tmp_path, changed="append", types={"id": "integer"})
    assert reader.values() == []
    with path.open("ab") as file:
        file.write(b'lines"\n')
    assert reader.values() == [{"id": 1, "text": "two\nlines"}]


def test_broken_lines_say_what_they_are(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(
        b"id;t\n1;2026-01-01T00:00:00Z\n2\nx;2026-01-01\n4;soon\n\n\xff;1\n5;2026-01-01T01:00\n"
    )
    types = {"id": "integer"}
    reader = Reader(path, delimiter=";", types=types, key=("id",), timestamp="t")
    (batch,) = reader.batches()
    assert [record.timestamp_ms for record in batch.records] == [1767225600000, 1767229200000]
    assert [(letter.place.rpartition(" ")[2], letter.reason) for letter in batch.letters] == [
        ("3", "1 fields where there are 2 columns"),
        ("4", "column id: 'x' is not of type integer"),
        ("5", "column t: 'soon' is not a time (ISO 8601, or a number in ms)"),
        ("7", "not UTF-8 (byte 0 of the line)"),
    ]


def test_a_file_that_only_settles_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n")
    assert Reader(tmp_path, settle_seconds=3600).works() == []
    os.utime(path, (0, 0))
    assert Reader(tmp_path, settle_seconds=3600).works() == ["a.jsonl"]


@pytest.mark.parametrize(
    ("path", "content", "settings", "said"),
    [
        ("a.csv", b"id,id\n", {}, "line 1: the first row does not name every column"),
        ("a.csv", b"id\n1\n", {"types": {"n": "integer"}}, "there is no column n"),
        ("a.txt", b"1\n", {}, "source.format: none of the 1 files"),
        ("a.csv", b"1\n", {"header": False}, "source.columns: with header = false"),
    ],
)
def test_refusals_name_file_or_key(
    tmp_path: Path, path: str, content: bytes, settings: dict[str, Any], said: str
) -> None:
    (tmp_path / path).write_bytes(content)
    with pytest.raises((ConnectorError, SettingsError), match=said):
        Reader(tmp_path, **settings).batches()


def test_places_that_are_none() -> None:
    with pytest.raises(SettingsError, match=r"source\.path: there is no folder"):
        Reader("/nowhere/at/all").works()
    with pytest.raises(SettingsError, match=r"source\.path: ftp://x: there are local paths"):
        Reader("ftp://x").works()


def test_a_line_without_an_end_is_never_in_memory() -> None:
    class Endless:
        def __init__(self) -> None:
            self.left = 256

        def read(self, size: int, /) -> bytes:
            self.left -= 1
            return b"x" * size if self.left > 0 else b"\n1\n" if self.left == 0 else b""

    tracemalloc.start()
    found = list(lines(Endless(), at=0, number=1, limit=1000))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert [(line.is_too_long, line.number) for line in found] == [(True, 1), (False, 2)]
    assert found[1].end == found[0].end + 2 > 60_000_000
    assert peak < 4_000_000
