"""The rules of tables are tested themselves: each damage to a good table must be named."""

from collections.abc import Callable

import pytest

from tests.checker.table_rules import TableView, table_violations

LOG = {
    0: [(offset, b"a%d" % offset) for offset in range(20)],
    # Transactions leave markers, which readers do not see.
    1: [(offset, b"b%d" % offset) for offset in range(30) if offset % 5],
}
Rows = list[tuple[int, int, bytes]]


def rows(first: int, second: int) -> Rows:
    """Return the rows of a version that has these numbers of records of the partitions."""
    return [
        *((0, offset, value) for offset, value in LOG[0][:first]),
        *((1, offset, value) for offset, value in LOG[1][:second]),
    ][::-1]


def good() -> list[Rows]:
    return [rows(0, 0), rows(5, 0), rows(5, 9), rows(20, len(LOG[1]))]


def found(views: list[Rows]) -> list[str]:
    return table_violations("t", LOG, [TableView(n, view) for n, view in enumerate(views)])


def test_a_good_table_has_no_breach() -> None:
    assert found(good()) == []


def twice(views: list[Rows]) -> None:
    views[2].append(views[2][0])


def gap(views: list[Rows]) -> None:
    views[2].remove((1, 6, b"b6"))


def other_value(views: list[Rows]) -> None:
    views[1][0] = (0, 4, b"a3")


def phantom(views: list[Rows]) -> None:
    views[3].append((1, 5, b"aborted"))


def unknown_partition(views: list[Rows]) -> None:
    views[3].append((7, 0, b"x"))


def backwards(views: list[Rows]) -> None:
    views[2] = rows(3, 9)


def behind(views: list[Rows]) -> None:
    views[3] = rows(19, len(LOG[1]))


def never(views: list[Rows]) -> None:
    views.clear()


@pytest.mark.parametrize(
    ("damage", "kind"),
    [
        (twice, "table duplicate"),
        (gap, "table gap"),
        (other_value, "table unsaid"),
        (phantom, "table unsaid"),
        (unknown_partition, "table unsaid"),
        (backwards, "table backwards"),
        (behind, "table behind"),
        (never, "table behind"),
    ],
)
def test_each_damage_is_named(damage: Callable[[list[Rows]], None], kind: str) -> None:
    views = good()
    damage(views)
    assert any(one.startswith(f"{kind}: t") for one in found(views)), found(views)
