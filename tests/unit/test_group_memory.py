"""What members of one group may make a coordinator hold: metadata, ids that are never used."""

import time

import pytest
from kio.schema.errors import ErrorCode

from broker.coordinator.group.messages import GroupSettings
from tests.unit.test_classic_group import World

FULL = ErrorCode.group_max_size_reached
RECORD_MAX = 10_000
SMALL = GroupSettings(initial_rebalance_delay_ms=0, record_max=RECORD_MAX)


def protocols(size: int, count: int = 1) -> tuple[tuple[str, bytes], ...]:
    return tuple((f"p{n}", bytes(size)) for n in range(count))


@pytest.mark.parametrize(("size", "count"), [(0, 1), (900, 1), (100, 9), (0, 200)])
def test_members_of_a_group_are_within_the_memory_of_two_records(size: int, count: int) -> None:
    world = World(SMALL)
    ids: list[str] = []
    for number in range(1000):
        answer = world.join(
            f"t{number}", protocols=protocols(size, count), instance_id=f"i{number}"
        )
        if answer is not None and answer.error is FULL:
            break
        ids = [member.member_id for member in world.group.members]
    assert 1 < len(ids) < 200
    assert sum(member.cost for member in world.group.members) <= 2 * RECORD_MAX
    # The others are as they were, may come back, and make room when they leave.
    assert [member.member_id for member in world.group.members] == ids
    world.join("again", ids[-1], protocols=protocols(size, count), instance_id=f"i{len(ids) - 1}")
    assert "again" not in world.joined or world.joined["again"].error is not FULL
    world.perform(world.group.leave([(ids[0], "i0")], world.now)[1])
    world.join("next", protocols=protocols(size, count), instance_id="next")
    assert "next" not in world.joined or world.joined["next"].error is not FULL


def test_a_member_that_is_too_large_alone_does_not_join_and_others_do() -> None:
    world = World(SMALL)
    refused = world.join("large", protocols=protocols(2 * RECORD_MAX))
    assert refused is not None
    assert (refused.error, refused.member_id) == (FULL, "")
    many = world.join("many", protocols=protocols(0, 2000))
    assert many is not None
    assert many.error is FULL
    taken = world.join("small", protocols=protocols(10))
    assert taken is not None
    assert taken.error is ErrorCode.none


def test_ids_that_are_given_out_and_never_used_are_forgotten_the_oldest_first() -> None:
    world = World()
    began = time.thread_time()
    given = []
    for number in range(20_000):
        answer = world.join(f"t{number}", needs_known_member_id=True)
        assert answer is not None
        assert answer.error is ErrorCode.member_id_required
        given.append(answer.member_id)
    kept = list(world.group.pending)
    assert 1_000 < len(kept) < 10_000
    assert kept == given[-len(kept) :]
    late = world.join("late", given[0])
    assert late is not None
    assert late.error is ErrorCode.unknown_member_id
    assert world.join("newest", given[-1]) is None or world.joined["newest"].error is (
        ErrorCode.none
    )
    assert time.thread_time() - began < 10


def test_no_id_is_forgotten_of_a_thousand_members_that_come_at_once() -> None:
    world = World()
    given = []
    for number in range(1_000):
        answer = world.join(f"t{number}", needs_known_member_id=True, client_id="c" * 100)
        assert answer is not None
        given.append(answer.member_id)
    assert list(world.group.pending) == given
