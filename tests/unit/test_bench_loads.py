"""The table of the benchmark's loads, and the choice from it."""

import itertools

import pytest

from bench.loads import BASE, KIB, LOADS, MIB, SINGLE, Kind, NoSuchLoad, chosen


def names(choice: str) -> list[str]:
    return [load.name for load in chosen(choice)]


def test_each_load_has_a_name_of_its_own() -> None:
    assert len({load.name for load in LOADS}) == len(LOADS)


def test_no_two_loads_are_the_same() -> None:
    def properties(load: object) -> str:
        return repr(load).partition("kind=")[2].partition(", core=")[0]

    pairs = itertools.combinations(LOADS, 2)
    assert [(a.name, b.name) for a, b in pairs if properties(a) == properties(b)] == []


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("record_bytes", {100, KIB, 10 * KIB}),
        ("partitions", {1, 16, 1000}),
        ("batch_bytes", {SINGLE, 16 * KIB, MIB}),
        ("linger_ms", {0, 5}),
        ("compression", {"none", "gzip", "snappy", "lz4", "zstd"}),
        ("idempotent", {False, True}),
    ],
)
def test_producers_are_tried_with_each_value(name: str, wanted: set[object]) -> None:
    there = {getattr(load, name) for load in LOADS if load.kind is Kind.PRODUCE}
    assert wanted <= there


def test_latency_is_measured_at_shares_of_the_full_rate() -> None:
    assert {load.share for load in LOADS if load.kind is Kind.PACED} >= {0.1, 0.5, 0.8}


def test_a_producer_beside_a_reader_has_the_rate_of_one_alone() -> None:
    beside = {load.share for load in LOADS if load.kind is Kind.MIXED}
    assert beside <= {load.share for load in LOADS if load.kind is Kind.PACED}


def test_a_run_without_a_choice_has_the_core_loads() -> None:
    assert names("") == names("core") == [load.name for load in LOADS if load.core]


def test_all_is_the_whole_table() -> None:
    assert chosen("all") == LOADS


def test_loads_come_in_the_order_of_the_table_and_once() -> None:
    assert names("latency,produce-1m,late*,produce-16k") == ["produce-16k", "produce-1m", "latency"]


def test_a_share_of_the_full_rate_brings_the_load_that_has_it() -> None:
    assert names("paced-80") == [BASE, "paced-80"]


def test_a_name_that_no_load_has_is_refused_with_those_that_are_there() -> None:
    with pytest.raises(NoSuchLoad, match=r"LOADS=fast: .*produce-16k"):
        chosen("latency,fast")


def test_records_of_a_run_move_the_same_bytes_at_each_size() -> None:
    small, large = (load for load in chosen("produce-10k,produce-1m"))
    assert {load.records(10 * MIB) for load in (small, large)} == {10 * KIB, KIB}
