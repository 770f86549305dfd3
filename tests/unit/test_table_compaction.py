"""The files of a partition that OPTIMIZE joins: by their sizes alone."""

from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.jobs.table_compaction import groups_of
from lakehead.lake.tables.logical_files import LogicalFile

FILE_BYTES = 100


def joined(sizes: list[int]) -> list[list[int]]:
    files = [
        LogicalFile(path=str(n), action={"size": size}, vector=None) for n, size in enumerate(sizes)
    ]
    return [[int(file.path) for file in group] for group in groups_of(files, FILE_BYTES)]


def test_small_files_are_joined_also_where_large_ones_are_between() -> None:
    assert joined([20, 90, 20, 90, 20]) == [[0, 2, 4]]


def test_a_file_that_is_large_enough_stays_as_it_is() -> None:
    assert joined([100, 1, 250, 1]) == [[1, 3]]
    assert joined([60, 60, 60]) == []


@given(st.lists(st.integers(1, 150), max_size=30))
def test_groups_are_of_several_files_that_fit_one(sizes: list[int]) -> None:
    groups = joined(sizes)
    taken = [number for group in groups for number in group]
    assert len(taken) == len(set(taken))
    assert all(len(group) > 1 and sum(sizes[n] for n in group) <= FILE_BYTES for group in groups)
    left = [size for n, size in enumerate(sizes) if n not in taken and size * 4 < FILE_BYTES]
    assert len(left) <= 1
