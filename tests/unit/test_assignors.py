"""Server-side assignors: complete, fair, and true to what members had."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehead.broker.coordinator.group.consumer.assignors import (
    ASSIGNORS,
    AssignedMember,
    AssignmentSpec,
    Targets,
    range_assignor,
    uniform_assignor,
)
from lakehead.broker.coordinator.group.consumer.consumer_members import TopicPartitions
from tests.support.topic_catalogs import topic_id

A, B, C = (topic_id(name) for name in "abc")


def spec(
    members: dict[str, set[bytes]], counts: dict[bytes, int], targets: Targets | None = None
) -> AssignmentSpec:
    had = targets or {}
    return AssignmentSpec(
        members={
            name: AssignedMember(topics=frozenset(topics), target=had.get(name, {}))
            for name, topics in members.items()
        },
        partition_counts=counts,
    )


def pairs(partitions: TopicPartitions) -> set[tuple[bytes, int]]:
    return {(topic, index) for topic, indexes in partitions.items() for index in indexes}


def sizes(targets: Targets) -> list[int]:
    return sorted(len(pairs(target)) for target in targets.values())


subscriptions = st.dictionaries(
    st.sampled_from([f"m{number}" for number in range(8)]),
    st.sets(st.sampled_from([A, B, C])),
    min_size=1,
)
counts_of = st.fixed_dictionaries({topic: st.integers(1, 9) for topic in (A, B, C)})


@pytest.mark.parametrize("name", sorted(ASSIGNORS))
@given(first=subscriptions, second=subscriptions, counts=counts_of, grown=counts_of)
def test_each_partition_with_a_subscriber_goes_to_one_of_them(
    name: str,
    first: dict[str, set[bytes]],
    second: dict[str, set[bytes]],
    counts: dict[bytes, int],
    grown: dict[bytes, int],
) -> None:
    targets: Targets = {}
    for members, known in ((first, counts), (second, grown)):
        wanted = set().union(*members.values())
        existing = {topic: count for topic, count in known.items() if topic in wanted}
        targets = ASSIGNORS[name](spec(members, existing, targets))
        given_out = [place for target in targets.values() for place in pairs(target)]
        assert sorted(given_out) == sorted((t, i) for t in existing for i in range(existing[t]))
        for member, target in targets.items():
            assert set(target) <= members[member]
            assert all(target.values())


@given(
    before=st.integers(1, 9),
    after=st.integers(1, 9),
    count=st.integers(1, 30),
    more=st.integers(0, 9),
)
def test_uniform_is_fair_and_moves_no_more_than_it_must(
    before: int, after: int, count: int, more: int
) -> None:
    first = uniform_assignor(spec({f"m{n}": {A} for n in range(before)}, {A: count}))
    assert sizes(first)[-1] - sizes(first)[0] <= 1
    second = uniform_assignor(spec({f"m{n}": {A} for n in range(after)}, {A: count + more}, first))
    assert sizes(second)[-1] - sizes(second)[0] <= 1
    most = -(-(count + more) // after)
    for name in first.keys() & second.keys():
        had, has = pairs(first[name]), pairs(second[name])
        assert len(had & has) >= min(len(had), (count + more) // after)
        if len(had) <= (count + more) // after:
            assert had <= has
        assert len(has) <= most


def test_uniform_balances_what_different_subscriptions_allow() -> None:
    members = {"one": {A, B}, "two": {A}, "three": {A, B, C}}
    targets = uniform_assignor(spec(members, {A: 6, B: 3, C: 3}))
    assert sizes(targets) == [4, 4, 4]
    # A member with nothing takes from the one that has all that both subscribe to.
    had: Targets = {"one": {A: frozenset(range(6))}}
    targets = uniform_assignor(spec({"one": {A, B}, "two": {A}}, {A: 6, B: 1}, had))
    assert sizes(targets) == [3, 4]
    assert targets["one"][A] < had["one"][A]


def test_range_gives_runs_in_the_order_of_instances_and_members() -> None:
    members = {
        "z": AssignedMember(topics=frozenset({A, B}), target={}, instance_id="1"),
        "a": AssignedMember(topics=frozenset({A, B}), target={}),
        "b": AssignedMember(topics=frozenset({A, B}), target={}),
    }
    targets = range_assignor(AssignmentSpec(members=members, partition_counts={A: 7, B: 2}))
    assert targets == {
        "z": {A: frozenset({0, 1, 2}), B: frozenset({0})},
        "a": {A: frozenset({3, 4}), B: frozenset({1})},
        "b": {A: frozenset({5, 6})},
    }


def test_a_group_without_members_has_no_targets() -> None:
    assert uniform_assignor(spec({}, {})) == range_assignor(spec({}, {})) == {}
