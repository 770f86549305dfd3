"""Cubes: the files of a table that were put into one order of the clustering columns together.

Old files of a growing table are left alone. New files become a cube, and cubes are joined by size:
one is rewritten only with at least two thirds of its own bytes, so each rewrite of a byte puts it
into a cube of at least 5/3 of the size of the one before. A byte is written at most 2 + log(limit /
size of a first cube) / log(5/3) times in its life, whatever the size of the table. And of the cubes
that are left each has more than 1.5 times the size of the next smaller one, as long as they are
below the limit, so few of them are small. A query by the columns reads a small part of each cube.

A cube is what tags of its files' `add` actions say, by the names that delta-spark gives to its
own: another engine that rewrites a file leaves the tags out, and the file is new again. Deletion
vectors keep the tags.

Source: Delta's liquid clustering (`ZCubeInfo`, `ClusteringStrategy`), which joins all cubes below
100 GB each time; the logarithmic method of Bentley and Saxe (1980).
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lakehead.lake.tables.logical_files import LogicalFile

_CUBE = "ZCUBE_ID"
_COLUMNS = "ZCUBE_ZORDER_BY"
_CURVE = "ZCUBE_ZORDER_CURVE"
_JOINED_RATIO = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CubePlan:
    """Files that are to become one cube."""

    files: tuple[LogicalFile, ...]

    @property
    def size_bytes(self) -> int:
        """Of the files."""
        return _size(self.files)


def cube_tags(cube: str, columns: Sequence[str]) -> dict[str, str]:
    """Return the tags of a file of a cube, by the columns that its rows are in order of."""
    return {_CUBE: cube, _COLUMNS: json.dumps(list(columns)), _CURVE: "zorder"}


def cube_of(file: LogicalFile, columns: Sequence[str]) -> str | None:
    """Return the cube of a file, None for one that is not clustered by these columns."""
    if file.tags.get(_COLUMNS) != json.dumps(list(columns)):
        return None
    return file.tags.get(_CUBE)


def new_files(files: Iterable[LogicalFile], columns: Sequence[str]) -> list[LogicalFile]:
    """Return the files that are not clustered by these columns, the oldest first."""
    found = [file for file in files if cube_of(file, columns) is None]
    return sorted(found, key=lambda file: (file.action.get("modificationTime") or 0, file.path))


def plan_cubes(
    files: Iterable[LogicalFile], columns: Sequence[str], cube_bytes: int
) -> list[CubePlan]:
    """Return the cubes to make of a table's files, so that no file is new: each of up to
    `cube_bytes`, or of one file. Empty if there is no new file.
    """
    files = list(files)
    plans: list[list[LogicalFile]] = [[]]
    size = 0
    for file in new_files(files, columns):
        if plans[-1] and size + file.size_bytes > cube_bytes:
            plans.append([])
            size = 0
        plans[-1].append(file)
        size += file.size_bytes
    if not plans[0]:
        return []
    for cube in _by_size(files, columns):
        more = _size(cube)
        if more > _JOINED_RATIO * size or size + more > cube_bytes:
            break
        plans[-1] += cube
        size += more
    return [CubePlan(files=tuple(plan)) for plan in plans]


def _by_size(files: Iterable[LogicalFile], columns: Sequence[str]) -> list[list[LogicalFile]]:
    cubes: dict[str, list[LogicalFile]] = defaultdict(list)
    for file in files:
        if (cube := cube_of(file, columns)) is not None:
            cubes[cube].append(file)
    return sorted(cubes.values(), key=_size)


def _size(files: Iterable[LogicalFile]) -> int:
    return sum(file.size_bytes for file in files)
