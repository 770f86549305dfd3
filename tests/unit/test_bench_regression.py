"""The verdict of `make bench-quick`, and the tree that it compares with."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.lakehead_server import ROOT
from bench.regression import ALLOWED, PACKAGES, ROUNDS_MIN, NoSuchCommit, Round, compared, unpack
from bench.workloads import Figures

EVEN = [1.0, 1.02, 0.98, 1.01, 0.99, 1.0]


def rounds(rates: list[float], costs: list[float]) -> list[Round]:
    """Rounds in which this tree has these multiples of the earlier one's figures."""
    return [
        {
            "load": (
                Figures(mb_per_second=100.0, cpu_seconds_per_gb=2.0),
                Figures(mb_per_second=100.0 * rate, cpu_seconds_per_gb=2.0 * cost),
            )
        }
        for rate, cost in zip(rates, costs, strict=True)
    ]


def verdicts(rates: list[float], costs: list[float]) -> list[bool]:
    return [one.is_regression for one in compared(rounds(rates, costs))]


def test_the_same_tree_is_no_regression() -> None:
    assert verdicts(EVEN, EVEN) == [False, False]


def test_a_rate_that_is_lower_in_every_round_is_a_regression() -> None:
    assert verdicts([0.85, 0.9, 0.88, 0.8, 0.92, 0.9], EVEN) == [True, False]


def test_a_cost_that_is_higher_in_every_round_is_a_regression() -> None:
    assert verdicts(EVEN, [1.1, 1.2, 1.08, 1.3, 1.15, 1.1]) == [False, True]


def test_rounds_that_disagree_are_not_a_regression() -> None:
    assert verdicts([0.5, 0.6, 1.1, 0.7, 0.8, 0.6], EVEN) == [False, False]


def test_a_small_loss_in_every_round_is_allowed() -> None:
    assert verdicts([1 - ALLOWED / 2] * 6, [1 + ALLOWED / 2] * 6) == [False, False]


def test_too_few_rounds_are_not_judged() -> None:
    assert verdicts([0.5] * (ROUNDS_MIN - 1), [2.0] * (ROUNDS_MIN - 1)) == [False, False]
    assert verdicts([0.5] * ROUNDS_MIN, [2.0] * ROUNDS_MIN) == [True, True]


@given(st.lists(st.floats(1.0, 3.0), min_size=1, max_size=9))
def test_what_is_faster_and_cheaper_is_never_a_regression(gains: list[float]) -> None:
    assert verdicts(gains, [1 / gain for gain in gains]) == [False, False]


def test_the_earlier_tree_has_the_packages_of_its_commit(tmp_path: Path) -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("these are sources without a clone")
    named = unpack("HEAD", tmp_path / "tree")
    assert " " in named
    assert sorted(path.name for path in (tmp_path / "tree").iterdir()) == sorted(PACKAGES)
    assert (tmp_path / "tree" / "lakehead" / "broker" / "node.py").exists()


def test_a_commit_that_the_history_lacks_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(NoSuchCommit, match=r"^[^\n]+$"):
        unpack("0" * 39 + "1", tmp_path)
