"""Fetch sessions (KIP-227): who gets a slot, and who loses one."""

import random

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.partition import fetch_session
from lakehead.broker.partition.fetch_session import EVICTION_S, FetchSessions
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.fetch import FetchPartition, FetchRequest, FetchTopic
from tests.unit.test_delayed_requests import SteppedClock

WANTED = [FetchTopic("t", [FetchPartition(0, -1, 0, -1, 1 << 20)])]


def fetch(session_id: int, epoch: int) -> FetchRequest:
    topics = WANTED if epoch == 0 else []
    return FetchRequest(0, 1, 1 << 20, 0, session_id, epoch, topics, [], "")


class World:
    def __init__(self, slots: int) -> None:
        self.clock = SteppedClock()
        self.sessions = FetchSessions(slots, self.clock, random.Random(1))

    def begin(self) -> int:
        """The id of the session that a client was given, 0 for none."""
        session = self.sessions.plan(fetch(0, 0), by_id=False).session
        return 0 if session is None else session.session_id

    def go_on(self, session_id: int, epoch: int) -> int:
        """How many partitions the session remembers."""
        return len(self.sessions.plan(fetch(session_id, epoch), by_id=False).partitions)


def test_who_comes_when_all_slots_are_in_use_gets_whole_answers() -> None:
    world = World(slots=2)
    first, second = world.begin(), world.begin()
    assert 0 not in {first, second}
    assert first != second
    assert world.begin() == 0
    assert len(world.sessions) == 2
    assert world.go_on(first, 1) == 1


def test_a_session_that_is_not_used_makes_room_and_one_that_is_stays() -> None:
    world = World(slots=2)
    unused, used = world.begin(), world.begin()
    world.clock.seconds = EVICTION_S - 1
    assert world.go_on(used, 1) == 1
    assert world.begin() == 0, "not yet"
    world.clock.seconds = EVICTION_S
    fresh = world.begin()
    assert fresh > 0
    assert world.begin() == 0, "the other was used a second ago"
    assert world.go_on(used, 2) == 1
    with pytest.raises(KafkaError) as caught:
        world.go_on(unused, 1)
    assert caught.value.code is ErrorCode.fetch_session_id_not_found


def test_without_slots_nobody_has_a_session() -> None:
    assert World(slots=0).begin() == 0


def test_a_session_that_forgets_all_it_has_ends_and_what_the_request_names_is_served() -> None:
    world = World(slots=1)
    session = world.begin()
    request = FetchRequest(0, 1, 1 << 20, 0, session, 1, WANTED, [("t", [0])], "")
    plan = world.sessions.plan(request, by_id=False)
    assert [wanted.want.partition for wanted in plan.partitions] == [0]
    assert plan.session is None
    assert not plan.incremental
    assert len(world.sessions) == 0


def wanting(count: int, session_id: int = 0, epoch: int = 0) -> FetchRequest:
    """A request that names so many partitions, from 0."""
    wants = [FetchPartition(index, -1, 0, -1, 1 << 20) for index in range(count)]
    return FetchRequest(0, 1, 1 << 20, 0, session_id, epoch, [FetchTopic("t", wants)], [], "")


def test_sessions_have_so_many_partitions_in_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients choose how many a session has, and need not name partitions that exist."""
    monkeypatch.setattr(fetch_session, "PARTITIONS_MAX", 10)
    world = World(slots=100)

    def begin(count: int) -> int:
        plan = world.sessions.plan(wanting(count), by_id=False)
        assert len(plan.partitions) == count, "all is served, with a session or without"
        return 0 if plan.session is None else plan.session.session_id

    assert begin(11) == 0
    first, second = begin(6), begin(4)
    assert 0 not in {first, second}
    assert begin(1) == 0
    assert world.go_on(first, 1) == 6

    world.sessions.plan(wanting(0, second, -1), by_id=False)
    third = begin(4)
    assert third > 0, "a session that ended gave its room back"
    world.clock.seconds = EVICTION_S + 1
    assert world.go_on(third, 1) == 4
    assert begin(1) > 0, "a session that is not used makes room"
    assert len(world.sessions) == 2
    assert world.go_on(third, 2) == 4


def test_a_session_that_grows_beyond_the_room_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_session, "PARTITIONS_MAX", 10)
    world = World(slots=100)
    session = world.begin()
    world.sessions.plan(wanting(10, session, 1), by_id=False)
    with pytest.raises(KafkaError) as caught:
        world.sessions.plan(wanting(11, session, 2), by_id=False)
    assert caught.value.code is ErrorCode.fetch_session_id_not_found
    assert len(world.sessions) == 0
    assert world.sessions.plan(wanting(10), by_id=False).session is not None
