"""A digest of records depends on every part of every record, and on nothing else."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.decode.columns import arrow_schema
from lakehead.lake.decode.record_digest import RecordDigest

COLUMNS = ("key", "value", "offset", "timestamp", "headers")
SCHEMA = arrow_schema(COLUMNS)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

some_bytes = st.none() | st.binary(max_size=5)
headers = st.none() | st.lists(
    st.fixed_dictionaries({"key": st.text(max_size=3), "value": some_bytes}), min_size=1, max_size=3
)
record = st.fixed_dictionaries(
    {
        "key": some_bytes,
        "value": some_bytes,
        "offset": st.integers(0, 2**63 - 1),
        "timestamp": st.none() | st.integers(0, 10**6).map(lambda n: EPOCH + timedelta(seconds=n)),
        "headers": headers,
    }
)
records = st.lists(record, max_size=12)


def digest_of(rows: list[dict[str, Any]], cuts: list[int] | None = None) -> str:
    digest, whole = RecordDigest(), pa.Table.from_pylist(rows, SCHEMA)
    ends = [0, *sorted(min(cut, len(rows)) for cut in cuts or ()), len(rows)]
    for start, end in pairwise(ends):
        digest.add(whole.slice(start, end - start))
    assert digest.records == len(rows)
    return digest.hexdigest()


@given(records, st.lists(st.integers(0, 12), max_size=4))
def test_the_cuts_between_batches_do_not_count(rows: list[dict[str, Any]], cuts: list[int]) -> None:
    assert digest_of(rows, cuts) == digest_of(rows)


@given(records, records)
def test_different_records_have_different_digests(
    one: list[dict[str, Any]], other: list[dict[str, Any]]
) -> None:
    assert (digest_of(one) == digest_of(other)) == (one == other)


@given(st.lists(record, min_size=1, max_size=12), st.data())
def test_a_change_of_any_field_changes_the_digest(
    rows: list[dict[str, Any]], data: st.DataObject
) -> None:
    at = data.draw(st.integers(0, len(rows) - 1))
    name = data.draw(st.sampled_from(COLUMNS))
    changed = [dict(row) for row in rows]
    changed[at][name] = data.draw(record)[name]
    assert (digest_of(changed) == digest_of(rows)) == (changed == rows)


def test_bytes_that_move_from_a_record_to_its_neighbour_change_the_digest() -> None:
    def rows(*values: bytes | None) -> list[dict[str, Any]]:
        empty = dict.fromkeys(COLUMNS)
        return [empty | {"value": value, "offset": n} for n, value in enumerate(values)]

    assert len({digest_of(rows(*v)) for v in ((b"ab", b"c"), (b"a", b"bc"), (b"abc", None))}) == 3
    assert digest_of(rows(b"")) != digest_of(rows(None))


def test_bytes_under_a_null_do_not_count() -> None:
    """Arrow lets a null have bytes, which other readers of the same records may not have made."""
    offsets, held = np.array([0, 2, 4, 6], np.int32), np.frombuffer(b"aaxxbb", np.uint8)
    validity = pa.py_buffer(b"\x05")
    buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(held)]
    values = pa.Array.from_buffers(pa.binary(), 3, buffers)
    assert values.to_pylist() == [b"aa", None, b"bb"]
    empty = dict.fromkeys(COLUMNS)
    rows = [empty | {"offset": n, "value": value} for n, value in enumerate(values.to_pylist())]
    plain = pa.Table.from_pylist(rows, SCHEMA)
    digests = [RecordDigest(), RecordDigest()]
    digests[0].add(plain)
    digests[1].add(plain.set_column(1, SCHEMA.field("value"), values))
    assert digests[0].hexdigest() == digests[1].hexdigest() == digest_of(rows)


def test_digests_of_the_form_of_earlier_releases_are_as_these_made_them() -> None:
    digest = RecordDigest("sha256-columns-1")
    rows = [
        {"key": b"k", "value": b"v%d" % n, "offset": n, "timestamp": EPOCH, "headers": None}
        for n in range(3)
    ]
    digest.add(pa.Table.from_pylist(rows, SCHEMA))
    assert digest.hexdigest() == "491cf61a5d4e67b96701181bb2cefe92a49aa57cf1021e1da3d08f85135aaa5b"
