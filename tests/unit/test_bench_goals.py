"""The goals of a comparison: limits of figures, of ratios to peers, and to other loads."""

import pytest

from bench.contenders import CONTENDERS, KAFKA, LAKEHEAD
from bench.goals import EVERY_LOAD, GOALS, Goal
from bench.loads import LOADS
from bench.report import UNITS, Report, Sample
from bench.workloads import Figures

LOAD, OTHER = "produce-16k", "paced-25"


def report(*cells: tuple[str, str, float]) -> Report:
    """Return a report of the load, contender and value of each sample, one more round each time."""
    rounds: dict[tuple[str, str], int] = {}
    samples = []
    for load, contender, value in cells:
        number = rounds[load, contender] = rounds.get((load, contender), 0) + 1
        samples.append(
            Sample(
                load=load,
                contender=contender,
                round_number=number,
                figures=Figures(mb_per_second=value, p99_ms=value, peak_rss_bytes=value),
            )
        )
    return Report(samples=tuple(samples), environment={})


def reached(goal: Goal, *cells: tuple[str, str, float]) -> bool | None:
    figure = goal.judged(report(*cells))
    return figure.is_reached if figure else None


@pytest.mark.parametrize(("ours", "theirs", "is_reached"), [(120, 100, True), (119, 100, False)])
def test_a_ratio_to_a_peer_is_judged(ours: float, theirs: float, is_reached: bool) -> None:
    goal = Goal(load=LOAD, figure="mb_per_second", peer=KAFKA.name, limit=1.2)
    cells = ((LOAD, LAKEHEAD.name, ours), (LOAD, KAFKA.name, theirs))
    assert reached(goal, *cells) is is_reached


@pytest.mark.parametrize(("value", "is_reached"), [(5.0, True), (5.1, False)])
def test_a_figure_without_a_peer_is_judged_itself(value: float, is_reached: bool) -> None:
    goal = Goal(load=LOAD, figure="p99_ms", limit=5.0)
    assert reached(goal, (LOAD, LAKEHEAD.name, value)) is is_reached


@pytest.mark.parametrize(("beside", "is_reached"), [(10.0, True), (9.9, False)])
def test_a_ratio_to_another_load_is_judged(beside: float, is_reached: bool) -> None:
    goal = Goal(load=LOAD, figure="p99_ms", beside=OTHER, limit=2.0)
    cells = ((LOAD, LAKEHEAD.name, 20.0), (OTHER, LAKEHEAD.name, beside))
    assert reached(goal, *cells) is is_reached


def test_the_ratio_is_taken_within_a_round() -> None:
    """The machine has half its speed in the second round; the median of each alone would differ."""
    goal = Goal(load=LOAD, figure="mb_per_second", peer=KAFKA.name, limit=1.25)
    ours = [(LOAD, LAKEHEAD.name, rate) for rate in (100.0, 50.0)]
    theirs = [(LOAD, KAFKA.name, rate) for rate in (80.0, 40.0, 500.0)]
    assert reached(goal, *ours, *theirs)


def test_a_goal_whose_peer_was_not_measured_is_left_out() -> None:
    goal = Goal(load=LOAD, figure="mb_per_second", peer=KAFKA.name, limit=1.0)
    assert goal.judged(report((LOAD, LAKEHEAD.name, 1.0))) is None
    assert goal.judged(report((LOAD, KAFKA.name, 1.0))) is None


def test_memory_is_judged_at_its_largest_of_all_loads() -> None:
    goal = Goal(load=EVERY_LOAD, figure="peak_rss_bytes", limit=100.0)
    cells = ((LOAD, LAKEHEAD.name, 90.0), (OTHER, LAKEHEAD.name, 110.0))
    assert reached(goal, *cells) is False
    assert reached(goal, cells[0]) is True


@pytest.mark.parametrize("goal", GOALS)
def test_a_goal_names_what_is_measured(goal: Goal) -> None:
    loads = {load.name for load in LOADS}
    assert {goal.load, goal.beside} <= loads | {EVERY_LOAD, ""}
    assert {goal.contender, goal.peer} <= {contender.name for contender in CONTENDERS} | {""}
    assert goal.figure in UNITS
