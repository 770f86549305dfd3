"""Rows compared without being collected: counts and hashes that Spark adds up for each partition,
whatever the order of rows.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql.functions import expr

EXAMPLES = 5
_HASH = (
    "xxhash64(offset, {time}, key IS NULL, key, value IS NULL, value, size(headers), headers, "
    "transform(headers, header -> header.value IS NULL)) AS hash"
)
"""Nulls do not change a hash, so it is said where they are."""
_SUMS = (
    "count(*) AS rows",
    "sum(hash & 4294967295) AS low",
    "sum(shiftrightunsigned(hash, 32)) AS high",
    "min(offset) AS first",
    "max(offset) AS last",
)


@dataclass(frozen=True, slots=True)
class Digest:
    """What the rows of a partition come to: their hashes' halves, added up."""

    rows: int
    low: int
    high: int
    first: int
    last: int


def hashed(frame: DataFrame, *, is_timed: bool = True) -> DataFrame:
    """Return partition, offset, key and a hash of each row; without times and their types, if not
    `is_timed`.
    """
    time = "unix_millis(timestamp), timestampType" if is_timed else "0"
    return frame.selectExpr("partition", "offset", "key", _HASH.format(time=time))


def digests(rows: DataFrame) -> dict[int, Digest]:
    """Return what hashed rows come to, for each partition."""
    sums = rows.groupBy("partition").agg(*map(expr, _SUMS))
    return {
        one.partition: Digest(one.rows, one.low, one.high, one.first, one.last)
        for one in sums.collect()
    }


def newest(rows: DataFrame) -> DataFrame:
    """Return the last of the hashed rows of each key."""
    last = rows.groupBy("partition", "key").agg(expr("max(struct(offset, hash)) AS last"))
    return last.selectExpr("partition", "last.offset AS offset", "key", "last.hash AS hash")


def strangers(rows: DataFrame, known: DataFrame) -> int:
    """Return how many of the hashed rows are not among the known ones."""
    return rows.join(known, ["partition", "offset", "hash"], "left_anti").count()


def unequal(sides: Mapping[str, DataFrame]) -> tuple[int, list[str]]:
    """Compare hashed rows: how many the first side has, and a line for each other side that has
    others, with some places where.
    """
    (first, wanted), *others = sides.items()
    right = digests(wanted)
    lines = []
    for name, rows in others:
        found = digests(rows)
        if found != right:
            lines.append(f"{first}: {right}\n{name}: {found}\nat {_examples(wanted, rows)}")
    return sum(one.rows for one in right.values()), lines


def _examples(wanted: DataFrame, rows: DataFrame) -> list[tuple[int, int]]:
    both = wanted.alias("a").join(rows.alias("b"), ["partition", "offset"], "full")
    other = both.where("NOT (a.hash <=> b.hash)").select("partition", "offset")
    return [(row.partition, row.offset) for row in other.sort("offset").limit(EXAMPLES).collect()]
