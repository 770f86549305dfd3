"""The rules of transactions name each breach that is put in, and nothing else."""

import pytest

from tests.checker.transactions import transaction_violations
from tests.support.transaction_traffic import Outcomes

OUTCOMES = Outcomes(committed={1, 2}, aborted={3}, unknown={4, 5})
GOOD = ["1-0", "1-1", "2-0", "2-1", "4-0", "4-1"]


def values_of(number: int) -> list[str]:
    return [f"{number}-0", f"{number}-1"]


def kinds(seen: list[str]) -> set[str]:
    return {breach.split(":")[0] for breach in transaction_violations(OUTCOMES, seen, values_of)}


def test_what_is_right_is_let_be() -> None:
    assert kinds(GOOD) == set()
    assert kinds(GOOD[:4]) == set(), "of the unknown ones all or nothing"


@pytest.mark.parametrize(
    ("seen", "named"),
    [
        ([*GOOD, "1-1"], "duplicate"),
        (GOOD[1:], "torn"),
        ([*GOOD, "5-1"], "torn"),
        (GOOD[2:], "lost"),
        ([*GOOD, "3-0", "3-1"], "aborted"),
        ([*GOOD, "9-0", "9-1"], "aborted"),
    ],
)
def test_each_breach_is_named(seen: list[str], named: str) -> None:
    assert kinds(seen) == {named}
