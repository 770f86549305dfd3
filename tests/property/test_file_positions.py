"""Files cut into records: from any position that was kept, what follows is the same."""

import csv
import io
import json

from hypothesis import given, settings
from hypothesis import strategies as st

from lakehead.connectors.sources.files.formats import CsvRows, Line, Row, json_rows, lines
from tests.support.repetitions import examples

LIMIT = 64


class Dribble:
    """A file that gives what is asked for in pieces of given sizes."""

    def __init__(self, data: bytes, sizes: list[int]) -> None:
        self._file = io.BytesIO(data)
        self._sizes = sizes

    def read(self, size: int, /) -> bytes:
        return self._file.read(min(size, self._sizes.pop(0)) if self._sizes else size)


texts = st.binary(max_size=200) | st.lists(
    st.sampled_from([b"a", b"\n", b"\r\n", b'"', b",", b'""', b"\xff", b"bcd" * 30])
).map(b"".join)
sizes = st.lists(st.integers(1, 40), max_size=30)


def cut(data: bytes, at: int = 0, number: int = 1, pieces: list[int] | None = None) -> list[Line]:
    file = Dribble(data[at:], list(pieces or []))
    return list(lines(file, at=at, number=number, limit=LIMIT))


@settings(max_examples=examples(50))
@given(texts, sizes)
def test_lines_are_those_of_the_text_however_it_comes(data: bytes, pieces: list[int]) -> None:
    found = cut(data, pieces=pieces)
    expected = data.removeprefix(b"\xef\xbb\xbf").split(b"\n")
    if not data.split(b"\n")[-1]:
        expected = expected[:-1]
    assert len(found) == len(expected)
    assert [line.number for line in found] == list(range(1, len(found) + 1))
    start = 0
    for line, text in zip(found, expected, strict=True):
        assert line.end == start + len(data[start : line.end])
        is_ended = data[line.end - 1 : line.end] == b"\n"
        assert line.is_ended == is_ended
        start = line.end
        if line.is_too_long:
            assert len(text.removesuffix(b"\r")) > LIMIT
        else:
            assert line.text == text.removesuffix(b"\r")
    assert start == len(data)


@settings(max_examples=examples(50))
@given(texts, sizes)
def test_lines_from_any_position_are_those_that_follow(data: bytes, pieces: list[int]) -> None:
    found = cut(data)
    for n, line in enumerate(found):
        assert cut(data, line.end, line.number + 1, list(pieces)) == found[n + 1 :]


def rows_of(data: bytes, at: int, number: int, pieces: list[int]) -> list[Row]:
    file = Dribble(data[at:], pieces)
    found = lines(file, at=at, number=number, limit=LIMIT)
    rows = CsvRows(found, delimiter=",", limit=LIMIT, types={}, may_grow=False)
    return list(rows.rows(("a", "b")))


@settings(max_examples=examples(50))
@given(texts, sizes)
def test_rows_of_csv_from_any_position_are_those_that_follow(
    data: bytes, pieces: list[int]
) -> None:
    found = rows_of(data, 0, 1, list(pieces))
    ends = [row.end for row in found]
    assert ends == sorted(set(ends))
    for n, row in enumerate(found):
        assert rows_of(data, row.end, row.next_number, []) == found[n + 1 :]


fields = st.text(
    st.characters(codec="utf-8", exclude_categories=["Cs"], exclude_characters="\r\x00"),
    max_size=8,
)


@settings(max_examples=examples(50))
@given(st.lists(st.tuples(fields, fields), max_size=8), sizes)
def test_csv_as_python_writes_it_is_read_back(
    table: list[tuple[str, str]], pieces: list[int]
) -> None:
    file = io.StringIO(newline="")
    csv.writer(file, quoting=csv.QUOTE_ALL, lineterminator="\r\n").writerows(table)
    data = file.getvalue().encode()
    found = rows_of(data, 0, 1, list(pieces))
    assert [row.reason for row in found] == [""] * len(table)
    assert [json.loads(row.value) for row in found] == [{"a": a, "b": b} for a, b in table]


@settings(max_examples=examples(50))
@given(st.lists(st.sampled_from([b"1,2", b'"never closed,3', b"1,2,3", b"\xff,1", b"", b"x" * 99])))
def test_a_broken_line_costs_itself_alone(parts: list[bytes]) -> None:
    found = rows_of(b"".join(part + b"\n" for part in parts), 0, 1, [])
    good = [row for row in found if not row.reason]
    bad = [row for row in found if row.reason]
    wanted = [n for n, part in enumerate(parts, 1) if part == b"1,2"]
    broken = [n for n, part in enumerate(parts, 1) if part not in {b"1,2", b""}]
    swallows = [n for n, part in enumerate(parts, 1) if part.startswith(b'"')]
    if len(swallows) < 2:  # two of them are a pair of quotes, with all that is between
        assert [row.number for row in good] == wanted
        assert [row.number for row in bad] == broken


@settings(max_examples=examples(50))
@given(st.lists(st.one_of(st.integers(), st.text(max_size=3), st.none(), st.just({"k": [1]}))))
def test_json_lines_are_kept_as_they_are(values: list[object]) -> None:
    data = b"".join(json.dumps(value).encode() + b" \n" for value in values) + b"{broken\n"
    rows = list(json_rows(iter(cut(data)), limit=LIMIT))
    assert [json.loads(row.value) for row in rows if not row.reason] == values
    assert [row.number for row in rows if row.reason] == [len(values) + 1]
