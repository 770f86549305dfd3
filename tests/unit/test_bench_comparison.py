"""The order of a comparison's runs, a run that goes on, and the rate that paced loads share."""

from collections import Counter

import pytest

from bench.comparison import Sizes, Turn, full_rate, missing, run, seconds, turns
from bench.contenders import CONTENDERS, KAFKA, KAFKA_FLUSHING, LAKEHEAD
from bench.loads import BASE, LOADS, chosen
from bench.report import Sample
from bench.workloads import Figures, RunFailed


def sample(contender: str, rate: float | None, number: int = 1, load: str = BASE) -> Sample:
    figures = Figures(mb_per_second=rate)
    return Sample(load=load, contender=contender, round_number=number, figures=figures)


def test_contenders_take_turns_at_each_load_and_the_order_flips() -> None:
    order = [
        (turn.round_number, turn.load.name, turn.contender.key)
        for turn in turns(3, chosen("consume-recent,consume-older"), (LAKEHEAD, KAFKA))
    ]
    keys = [key for _, _, key in order]
    there, back = ["lakehead", "kafka"], ["kafka", "lakehead"]
    assert keys == there * 2 + back * 2 + there * 2
    assert [load for _, load, _ in order[:4]] == ["consume-recent"] * 2 + ["consume-older"] * 2


def test_each_contender_has_each_load_once_a_round() -> None:
    places = Counter(turn.place for turn in turns(4, LOADS, CONTENDERS))
    assert set(places.values()) == {1}
    assert all(
        (number, load.name, one.name) in places
        for number in range(1, 5)
        for load in LOADS
        for one in CONTENDERS
        if one.takes(load)
    )


def test_a_run_that_was_cut_short_lacks_only_what_has_no_sample() -> None:
    every = list(turns(2, chosen("core"), CONTENDERS))
    made = [
        Sample(load=t.load.name, contender=t.contender.name, round_number=t.round_number)
        for t in every[:5]
    ]
    assert missing(every, made) == every[5:]


def test_a_run_that_fails_is_kept_with_its_reason_and_the_next_goes_on() -> None:
    def measure(turn: Turn) -> Figures:
        if turn.contender is KAFKA:
            raise RunFailed("it ended with status 1")
        return Figures(p50_ms=1.0)

    done = list(run(turns(2, chosen("latency"), (LAKEHEAD, KAFKA)), measure))
    assert [(one.contender, one.failure, one.figures.p50_ms) for one in done] == [
        ("Lakehead", "", 1.0),
        ("Kafka", "it ended with status 1", None),
        ("Kafka", "it ended with status 1", None),
        ("Lakehead", "", 1.0),
    ]


def test_the_full_rate_is_that_of_the_slower_server_in_the_first_round() -> None:
    samples = [
        sample(LAKEHEAD.name, 120.0),
        sample(KAFKA.name, 90.0),
        sample(KAFKA_FLUSHING.name, 20.0),
        sample(KAFKA.name, 60.0, number=2),
        sample(KAFKA.name, 10.0, load="produce-1m"),
    ]
    assert full_rate(samples) == 90.0


def test_without_the_load_of_the_full_rate_there_is_no_share_of_it() -> None:
    with pytest.raises(RunFailed, match=BASE):
        full_rate([sample(LAKEHEAD.name, None), sample(LAKEHEAD.name, 5.0, load="produce-1m")])


def test_the_estimate_grows_with_the_rounds_and_the_bytes() -> None:
    def estimate(rounds: int, sizes: Sizes) -> float:
        return sum(seconds(turn, sizes) for turn in turns(rounds, chosen("all"), CONTENDERS))

    once, quick = estimate(1, Sizes()), estimate(1, Sizes.quick())
    assert estimate(3, Sizes()) == pytest.approx(3 * once)
    assert 60 < quick < once < 7200
