"""Cubes of a growing table: every file is in one, few are below the limit, and a byte is written a
bounded number of times.
"""

import math
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lakehead.lake.tables.cubes import cube_of, cube_tags, new_files, plan_cubes
from lakehead.lake.tables.logical_files import LogicalFile

LIMIT = 10_000
COLUMNS = ("id",)


def file(path: str, size: int, *, at: int = 0, **more: Any) -> LogicalFile:
    action = {"path": path, "size": size, "modificationTime": at, **more}
    return LogicalFile(path=path, action=action, vector=None)


class GrowingTable:
    """A table of files by path, and the bytes that clustering wrote of it."""

    def __init__(self) -> None:
        self.files: dict[str, LogicalFile] = {}
        self.written = 0
        self._number = 0

    def _add(self, size: int, **more: Any) -> None:
        self._number += 1
        path = f"f{self._number:06}"
        self.files[path] = file(path, size, at=self._number, **more)

    def append(self, sizes: list[int]) -> None:
        for size in sizes:
            self._add(size)

    def cluster(self) -> None:
        for plan in plan_cubes(self.files.values(), COLUMNS, LIMIT):
            assert plan.size_bytes <= LIMIT or len(plan.files) == 1
            for one in plan.files:
                del self.files[one.path]
            self.written += plan.size_bytes
            self._add(plan.size_bytes, tags=cube_tags(f"cube-{self._number}", COLUMNS))

    def cubes(self) -> dict[str | None, int]:
        sizes: dict[str | None, int] = {}
        for one in self.files.values():
            cube = cube_of(one, COLUMNS)
            sizes[cube] = sizes.get(cube, 0) + one.size_bytes
        return sizes


@given(st.lists(st.lists(st.integers(1, 3000), min_size=1, max_size=5), max_size=60))
def test_a_byte_is_written_few_times_and_few_cubes_are_left(rounds: list[list[int]]) -> None:
    table, least, total = GrowingTable(), LIMIT, 0
    for sizes in rounds:
        before = {one: size for one, size in table.cubes().items() if one is not None}
        table.append(sizes)
        table.cluster()
        least, total = min(least, sum(sizes)), total + sum(sizes)
        cubes = table.cubes()
        assert None not in cubes, "every file is in a cube"
        assert sum(cubes.values()) == total
        # Two cubes that are next to each other in size could not be joined: one is 1.5 times as
        # large, or both are more than the limit together.
        steps = math.log(LIMIT / least) / math.log(1.5)
        assert len(cubes) <= 2 * total / LIMIT + steps + 2
        # A cube that is left alone is as it was.
        assert all(cubes[one] == size for one, size in before.items() if one in cubes)
    assert table.written <= (2 + math.log(LIMIT / least) / math.log(5 / 3)) * total


def test_equal_rounds_write_a_byte_three_and_a_half_times() -> None:
    """Rounds of a thirty-second of the limit: figures of the page on clustering."""
    table = GrowingTable()
    for _ in range(256):
        table.append([LIMIT // 32])
        table.cluster()
    assert 3 < table.written / (256 * (LIMIT // 32)) < 4
    assert len(table.cubes()) <= 13


def test_what_is_not_new_is_left_alone() -> None:
    tags = cube_tags("a", COLUMNS)
    clustered = [file("a1", 10, tags=tags), file("a2", 10, tags=tags)]
    assert plan_cubes(clustered, COLUMNS, LIMIT) == []
    assert plan_cubes([], COLUMNS, LIMIT) == []
    other = plan_cubes(clustered, ("id", "name"), LIMIT)
    assert [len(plan.files) for plan in other] == [2], "other columns are another order"


def test_a_file_larger_than_a_cube_is_one_alone_and_old_files_come_first() -> None:
    files = [file("x", 5, at=2), file("y", LIMIT + 1, at=1), file("z", 5, at=3)]
    assert [one.path for one in new_files(files, COLUMNS)] == ["y", "x", "z"]
    plans = plan_cubes(files, COLUMNS, LIMIT)
    assert [[one.path for one in plan.files] for plan in plans] == [["y"], ["x", "z"]]
