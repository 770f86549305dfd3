"""`lakehead import --verify`: the comparison of a partition's records on both sides."""

from collections.abc import AsyncGenerator, Sequence

from lakehead.broker.cli.migration.comparison import (
    ComparedPartition,
    Comparison,
    Side,
    _Item,
    _Lost,
)
from lakehead.broker.cli.migration.source_batches import SourceBatch
from lakehead.storage.format.batch_writer import encode_batch
from lakehead.storage.format.compression import recompressed
from lakehead.storage.format.record_batch import CODECS, HEADER_SIZE, patch, read_header

Pairs = Sequence[tuple[bytes | None, bytes | None]]
END = 1000


def batch(offset: int, pairs: Pairs) -> SourceBatch:
    data = encode_batch(list(pairs), 1000)
    patch(data, 0, offset, 7)
    return SourceBatch(read_header(data), memoryview(data))


def in_zstd(one: SourceBatch) -> SourceBatch:
    data = recompressed(one.data, one.header, one.data[HEADER_SIZE:], CODECS.index("zstd"), None)
    return SourceBatch(read_header(data), memoryview(data))


def numbered(first: int, count: int) -> Pairs:
    return [(None, b"%d" % number) for number in range(first, first + count)]


async def items(batches: Sequence[_Item]) -> AsyncGenerator[_Item, None]:
    for one in batches:
        yield one


async def compare(
    here: Sequence[_Item], there: Sequence[_Item], *, is_compacted: bool = False
) -> ComparedPartition:
    result = ComparedPartition(topic="t", partition=0, start=0, end=END, behind=0)
    comparison = Comparison(result, is_compacted)
    await comparison.run(Side(items(here), 0, END), Side(items(there), 0, END))
    comparison.finish()
    return result


async def test_the_same_records_in_other_batches_and_codecs_are_the_same() -> None:
    found = await compare(
        [in_zstd(batch(0, numbered(0, 6))), batch(10, numbered(10, 4))],
        [
            batch(0, numbered(0, 2)),
            batch(2, numbered(2, 4)),
            batch(10, numbered(10, 1)),
            batch(11, numbered(11, 3)),
        ],
    )
    assert found.is_same
    assert found.records == found.source_records == 10
    assert found.digest == found.source_digest


async def test_the_digest_does_not_depend_on_batches() -> None:
    whole = await compare([batch(0, numbered(0, 6))], [batch(0, numbered(0, 6))])
    halves = await compare(
        [batch(0, numbered(0, 6))], [batch(0, numbered(0, 3)), batch(3, numbered(3, 3))]
    )
    assert whole.digest == halves.digest == halves.source_digest


async def test_a_difference_names_its_offsets_and_kinds() -> None:
    other = [*numbered(10, 2), (None, b"other"), (None, b"13")]
    found = await compare(
        [batch(0, numbered(0, 4)), batch(10, other), batch(20, numbered(20, 2))],
        [batch(0, numbered(0, 5)), batch(10, numbered(10, 4)), batch(20, numbered(20, 1))],
    )
    assert str(found.difference) == (
        "offsets 4 to 21: 1 missing here, 1 not at the source, 1 with another content"
    )
    assert (found.records, found.source_records) == (10, 10)
    assert found.digest != found.source_digest


async def test_one_side_that_ends_early_differs_to_the_last_offset() -> None:
    found = await compare([], [batch(5, numbered(5, 4))])
    assert str(found.difference) == "offsets 5 to 8: 4 missing here"
    found = await compare([batch(5, numbered(5, 4))], [])
    assert str(found.difference) == "offsets 5 to 8: 4 not at the source"


async def test_records_that_the_source_compacted_away_are_superseded() -> None:
    here = [
        batch(0, [(b"a", b"1"), (b"b", b"1"), (b"c", None), (b"a", b"2")]),
        batch(4, [(b"b", b"2")]),
    ]
    there = [batch(3, [(b"a", b"2")]), batch(4, [(b"b", b"2")])]
    found = await compare(here, there, is_compacted=True)
    assert found.is_same
    assert found.superseded == 3
    assert found.digest == found.source_digest
    assert not (await compare(here, there)).is_same


async def test_the_last_record_of_a_key_may_not_be_missing_at_the_source() -> None:
    here = [batch(0, [(b"a", b"1"), (b"b", b"1")])]
    found = await compare(here, [batch(0, [(b"a", b"1")])], is_compacted=True)
    assert str(found.difference) == "offsets 1 to 1: 1 not at the source"


async def test_a_batch_of_which_the_source_deleted_the_beginning_is_the_same() -> None:
    here = [batch(0, numbered(0, 3)), in_zstd(batch(3, numbered(3, 6)))]
    there: list[_Item] = [batch(0, numbered(0, 3)), _Lost(5), batch(3, numbered(3, 6))]
    found = await compare(here, there)
    assert found.is_same
    assert (found.start, found.records, found.source_records) == (5, 7, 7)
    assert found.digest == found.source_digest
