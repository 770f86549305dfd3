"""The file of a checkpoint: a Parquet file to everybody, and self-checking for us."""

import io
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.storage.errors import CorruptObject, UnsupportedFormat
from lakehead.storage.format.checkpoint import Checkpoint, Columns, decode, encode
from lakehead.storage.format.columns import Doubles, Flags, Longs, Texts, Words
from tests.support.repetitions import examples

LONGS = st.integers(-(2**63), 2**63 - 1)


def finish(steps: Generator[None, None, Any]) -> Any:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def plain(columns: Columns) -> dict[str, list[object]]:
    return {name: [column[row] for row in range(len(column))] for name, column in columns.items()}


def sample(rows: int) -> Checkpoint:
    return Checkpoint(
        number=7,
        tables={
            "cluster": {"cluster_id": Texts.of(["c1"]), "next_entry": Longs([7])},
            "objects": {
                "object": Longs(range(rows)),
                "key": Texts.of(f"data/{row}é" for row in range(rows)),
                "kind": Words.of(("so", "wal", "sso")[row % 3] for row in range(rows)),
                "is_open": Flags(row % 5 == 0 for row in range(rows)),
                "limit": Doubles(row / 4 for row in range(rows)),
            },
        },
    )


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(st.tuples(LONGS, st.text(), st.sampled_from("abc"), st.booleans(), st.floats(0, 9)))
)
def test_what_was_encoded_is_decoded(rows: list[tuple[int, str, str, bool, float]]) -> None:
    columns: Columns = {
        "size": Longs(row[0] for row in rows),
        "name": Texts.of(row[1] for row in rows),
        "kind": Words.of(row[2] for row in rows),
        "is_open": Flags(row[3] for row in rows),
        "limit": Doubles(row[4] for row in rows),
    }
    body = b"".join(finish(encode(Checkpoint(number=3, tables={"objects": columns}))))
    found = finish(decode("k", body))
    assert found.number == 3
    if rows:
        assert plain(found.tables["objects"]) == plain(columns)
    else:
        assert found.tables == {}


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 65_536, 70_001])
def test_any_parquet_reader_reads_it(rows: int) -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    checkpoint = sample(rows)
    file = pq.ParquetFile(
        io.BytesIO(b"".join(finish(encode(checkpoint)))), page_checksum_verification=True
    )
    whole = file.read()
    for name, columns in checkpoint.tables.items():
        table = whole.filter(pc.equal(whole["table"], name)).drop_columns("table")
        found = {column: table[column].to_pylist() for column in columns}
        assert found == plain(columns)
        absent = set(table.column_names) - set(columns)
        assert all(table[column].null_count == len(table) for column in absent)
    # A reader that wants one table skips the row groups of the others.
    assert [
        file.metadata.row_group(n).column(0).statistics.max
        for n in range(file.metadata.num_row_groups)
    ] == list(checkpoint.tables)


def test_every_flipped_bit_is_found() -> None:
    body = b"".join(finish(encode(sample(3))))
    for position in range(len(body)):
        spoiled = bytearray(body)
        spoiled[position] ^= 1 << position % 8
        with pytest.raises(CorruptObject, match=r"object k is corrupt at byte \d+"):
            finish(decode("k", bytes(spoiled)))


def test_every_cut_is_found() -> None:
    body = b"".join(finish(encode(sample(3))))
    for size in range(len(body)):
        with pytest.raises(CorruptObject):
            finish(decode("k", body[:size]))
    with pytest.raises(CorruptObject):
        finish(decode("k", body + b"x"))


def test_a_newer_version_asks_for_an_upgrade() -> None:
    body = b"".join(finish(encode(replace(sample(3), version=99))))
    with pytest.raises(UnsupportedFormat, match="upgrade"):
        finish(decode("k", body))


def test_a_code_without_a_word_is_damage() -> None:
    rows: Columns = {"kind": Words(b"\0\5", ("a",))}
    body = b"".join(finish(encode(Checkpoint(number=3, tables={"objects": rows}))))
    with pytest.raises(CorruptObject, match="a code without a word"):
        finish(decode("meta/checkpoint/3", body))
