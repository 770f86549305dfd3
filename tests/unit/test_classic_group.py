"""The classic group protocol, scenario by scenario, on the state machine alone."""

import time
from dataclasses import replace

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.classic_group import ClassicGroup, refuse_request
from lakehead.broker.coordinator.group.messages import (
    GroupSettings,
    GroupState,
    Joined,
    JoinRequest,
    JoinResult,
    Store,
    Synced,
    SyncRequest,
    SyncResult,
)
from tests.support.processor_time import check_within, measured

NO_DELAY = GroupSettings(initial_rebalance_delay_ms=0)
PROTOCOLS = (("range", b"meta-range"), ("roundrobin", b"meta-rr"))


def join_request(**changes: object) -> JoinRequest:
    request = JoinRequest(
        member_id="",
        instance_id=None,
        client_id="c",
        client_host="/127.0.0.1",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=60_000,
        protocol_type="consumer",
        protocols=PROTOCOLS,
        needs_known_member_id=False,
        can_skip_assignment=True,
    )
    return replace(request, **changes)  # type: ignore[arg-type]


class World:
    """A group with a hand-driven clock; tickets are names, answers are kept by name."""

    def __init__(self, settings: GroupSettings = NO_DELAY) -> None:
        self.now = 100.0
        self.ids = 0
        self.settings = settings
        self.group = ClassicGroup("g", settings, self.new_id)
        self.joined: dict[str, JoinResult] = {}
        self.synced: dict[str, SyncResult] = {}
        self.stores: list[Store] = []
        self.store_at_once = True

    def new_id(self, prefix: str) -> str:
        self.ids += 1
        return f"{prefix}-{self.ids}"

    def perform(self, effects: list[Joined | Synced | Store]) -> None:
        for effect in effects:
            match effect:
                case Joined():
                    assert effect.ticket not in self.joined
                    self.joined[effect.ticket] = effect.result
                case Synced():
                    assert effect.ticket not in self.synced
                    self.synced[effect.ticket] = effect.result
                case Store():
                    self.stores.append(effect)
                    if self.store_at_once:
                        self.perform(self.group.stored(effect.token, None, self.now))

    def join(self, ticket: str, member_id: str = "", **changes: object) -> JoinResult | None:
        request = join_request(member_id=member_id, **changes)
        self.perform(self.group.join(request, ticket, self.now))
        return self.joined.get(ticket)

    def sync(
        self, ticket: str, member_id: str, generation: int, **assignments: bytes
    ) -> SyncResult | None:
        request = SyncRequest(
            member_id=member_id,
            instance_id=None,
            generation=generation,
            protocol_type=None,
            protocol_name=None,
            assignments=tuple((k.replace("_", "-"), v) for k, v in assignments.items()),
        )
        self.perform(self.group.sync(request, ticket, self.now))
        return self.synced.get(ticket)

    def leave(self, member_id: str, instance_id: str | None = None) -> ErrorCode:
        codes, effects = self.group.leave([(member_id, instance_id)], self.now)
        self.perform(effects)
        return codes[0]

    def heartbeat(self, member_id: str, generation: int) -> ErrorCode:
        return self.group.heartbeat(member_id, None, generation, self.now)

    def after(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.group.tick(self.now))


def stable_pair(settings: GroupSettings = NO_DELAY) -> World:
    """c-1 leads, c-2 follows, generation 2, stable."""
    world = World(settings)
    assert world.join("a")
    world.sync("a-sync", "c-1", 1, c_1=b"all")
    assert world.join("b") is None
    assert world.join("a2", "c-1") is not None
    world.sync("b2-sync", "c-2", 2)
    world.sync("a2-sync", "c-1", 2, c_1=b"half-1", c_2=b"half-2")
    assert world.group.state is GroupState.STABLE
    return world


def test_00_a_lone_member_leads_and_gets_what_it_assigned() -> None:
    world = World()
    result = world.join("a")
    assert result == JoinResult(
        member_id="c-1",
        generation=1,
        protocol_type="consumer",
        protocol_name="range",
        leader="c-1",
        members=world.group.members.view("range"),
    )
    assert [m.metadata for m in result.members] == [b"meta-range"]
    answer = world.sync("s", "c-1", 1, c_1=b"mine")
    assert answer is not None
    assert answer.assignment == b"mine"
    assert world.stores[-1].snapshot.members[0].assignment == b"mine"
    assert world.group.state is GroupState.STABLE


def test_01_a_second_member_makes_a_new_generation_for_both() -> None:
    world = stable_pair()
    assert world.joined["b"].generation == world.joined["a2"].generation == 2
    assert world.joined["b"].members == ()
    assert [m.member_id for m in world.joined["a2"].members] == ["c-1", "c-2"]
    assert world.synced["b2-sync"].assignment == b"half-2"
    assert world.synced["a2-sync"].assignment == b"half-1"


def test_02_a_follower_waits_until_the_assignment_is_stored() -> None:
    world = World()
    world.store_at_once = False
    world.join("a")
    assert world.sync("s", "c-1", 1, c_1=b"x") is None
    world.perform(world.group.stored(world.stores[-1].token, None, world.now))
    assert world.synced["s"].assignment == b"x"


def test_03_when_the_assignment_cannot_be_stored_members_rejoin() -> None:
    world = World()
    world.store_at_once = False
    world.join("a")
    world.sync("s", "c-1", 1, c_1=b"x")
    error = ErrorCode.coordinator_not_available
    world.perform(world.group.stored(world.stores[-1].token, error, world.now))
    assert world.synced["s"].error is error
    assert world.group.state is GroupState.PREPARING_REBALANCE


def test_04_first_join_of_new_clients_gets_an_id_first() -> None:
    world = World()
    result = world.join("a", needs_known_member_id=True)
    assert result is not None
    assert (result.error, result.member_id) == (ErrorCode.member_id_required, "c-1")
    assert world.join("b", "c-1", needs_known_member_id=True).generation == 1  # type: ignore[union-attr]


def test_05_an_id_that_is_never_used_is_forgotten() -> None:
    world = World()
    world.join("a", needs_known_member_id=True)
    world.after(10.1)
    assert world.join("b", "c-1").error is ErrorCode.unknown_member_id  # type: ignore[union-attr]


def test_06_the_first_rebalance_waits_for_more_members() -> None:
    world = World(GroupSettings(initial_rebalance_delay_ms=3_000))
    assert world.join("a") is None
    world.after(2)
    assert world.join("b") is None
    world.after(1.1)  # the delay is over, but somebody came: once more
    assert not world.joined
    world.after(3.1)
    assert world.joined["a"].generation == world.joined["b"].generation == 1


def test_07_who_does_not_rejoin_in_time_is_out() -> None:
    world = stable_pair()
    world.join("c")
    for _ in range(12):
        world.heartbeat("c-1", 2)  # alive, but it does not rejoin
        world.heartbeat("c-2", 2)
        world.after(5.1)
    assert world.joined["c"].generation == 3
    assert world.joined["c"].leader == "c-3"
    assert world.heartbeat("c-1", 2) is ErrorCode.unknown_member_id


def test_08_who_falls_silent_is_out_and_the_others_rebalance() -> None:
    world = stable_pair()
    world.after(6)
    assert world.heartbeat("c-1", 2) is ErrorCode.none
    world.after(6)
    assert "c-2" not in world.group.members
    assert world.heartbeat("c-1", 2) is ErrorCode.rebalance_in_progress
    assert world.join("again", "c-1").generation == 3  # type: ignore[union-attr]


def test_09_who_joins_but_never_syncs_is_out() -> None:
    world = World()
    world.join("a")
    world.join("b")
    world.join("a2", "c-1")
    world.sync("s", "c-1", 2, c_1=b"x", c_2=b"y")
    for _ in range(13):
        world.heartbeat("c-1", 2)
        world.heartbeat("c-2", 2)
        world.after(5)
    assert "c-2" not in world.group.members


def test_10_leaving_rebalances_and_the_last_one_leaves_an_empty_group() -> None:
    world = stable_pair()
    assert world.leave("c-1") is ErrorCode.none
    assert world.join("b3", "c-2").leader == "c-2"  # type: ignore[union-attr]
    assert world.leave("c-2") is ErrorCode.none
    assert world.group.state is GroupState.EMPTY
    assert world.stores[-1].snapshot.members == ()
    assert world.leave("c-2") is ErrorCode.unknown_member_id


def test_11_generations_and_members_are_checked_everywhere() -> None:
    world = stable_pair()
    check = world.group.check_commit
    assert world.heartbeat("c-1", 1) is ErrorCode.illegal_generation
    assert world.heartbeat("nobody", 2) is ErrorCode.unknown_member_id
    assert world.sync("x", "c-1", 1).error is ErrorCode.illegal_generation  # type: ignore[union-attr]
    assert world.sync("y", "nobody", 2).error is ErrorCode.unknown_member_id  # type: ignore[union-attr]
    assert check("c-1", None, 1, world.now) is ErrorCode.illegal_generation
    assert check("c-1", None, 2, world.now) is ErrorCode.none
    assert check("", None, -1, world.now) is ErrorCode.unknown_member_id
    assert check("nobody", None, 2, world.now) is ErrorCode.unknown_member_id
    world.join("c")
    assert world.sync("z", "c-1", 2).error is ErrorCode.rebalance_in_progress  # type: ignore[union-attr]
    assert check("c-1", None, 2, world.now) is ErrorCode.none


def test_12_commits_are_refused_between_join_and_sync() -> None:
    world = World()
    world.join("a")
    error = world.group.check_commit("c-1", None, 1, world.now)
    assert error is ErrorCode.rebalance_in_progress


def test_13_protocols_must_be_common() -> None:
    world = stable_pair()
    inconsistent = ErrorCode.inconsistent_group_protocol
    assert world.join("c", protocols=(("sticky", b""),)).error is inconsistent  # type: ignore[union-attr]
    assert world.join("d", protocol_type="connect").error is inconsistent  # type: ignore[union-attr]
    assert world.join("e", protocols=()).error is inconsistent  # type: ignore[union-attr]
    assert world.join("f", protocol_type="").error is inconsistent  # type: ignore[union-attr]
    assert world.join("ok", protocols=(("roundrobin", b"only"),)) is None
    world.join("a3", "c-1")
    world.join("b3", "c-2")
    assert world.joined["ok"].protocol_name == "roundrobin"


@pytest.mark.parametrize("timeout_ms", [5_999, 1_800_001, 0, -1])
def test_14_session_timeouts_have_bounds(timeout_ms: int) -> None:
    request = join_request(session_timeout_ms=timeout_ms)
    assert refuse_request(request, NO_DELAY) is ErrorCode.invalid_session_timeout


def test_15_a_full_group_refuses_the_next_member() -> None:
    world = World(replace(NO_DELAY, max_size=1))
    world.join("a")
    assert world.join("b").error is ErrorCode.group_max_size_reached  # type: ignore[union-attr]


def test_16_a_static_member_comes_back_without_a_rebalance() -> None:
    world = World()
    world.join("a", instance_id="i")
    world.sync("s", "i-1", 1)
    result = world.join("again", instance_id="i")
    assert result is not None
    assert (result.generation, result.member_id, result.skip_assignment) == (1, "i-2", True)
    assert world.group.state is GroupState.STABLE
    assert world.stores[-1].snapshot.members[0].member_id == "i-2"
    fenced = world.group.heartbeat("i-1", "i", 1, world.now)
    assert fenced is ErrorCode.fenced_instance_id
    assert world.group.heartbeat("i-2", "i", 1, world.now) is ErrorCode.none


def test_17_an_old_client_that_comes_back_as_static_leader_is_not_told_that_it_leads() -> None:
    world = World()
    world.join("a", instance_id="i")
    world.sync("s", "i-1", 1)
    result = world.join("again", instance_id="i", can_skip_assignment=False)
    assert result is not None
    assert (result.leader, result.member_id, result.members) == ("i-1", "i-2", ())


def test_18_a_static_member_leaves_by_its_instance_id() -> None:
    world = World()
    world.join("a", instance_id="i")
    assert world.leave("", "other") is ErrorCode.unknown_member_id
    assert world.leave("wrong", "i") is ErrorCode.fenced_instance_id
    assert world.leave("", "i") is ErrorCode.none
    assert world.group.state is GroupState.EMPTY


def test_19_a_static_member_that_waits_is_fenced_by_its_double() -> None:
    world = World()
    world.join("dynamic")
    world.join("first", instance_id="i")
    world.join("second", instance_id="i")
    assert world.joined["first"].error is ErrorCode.fenced_instance_id
    world.join("dynamic2", "c-1")
    assert world.joined["second"].generation == 2


def test_20_a_follower_that_asks_again_gets_the_same_generation_and_the_leader_a_new_one() -> None:
    world = stable_pair()
    assert world.join("b3", "c-2").generation == 2  # type: ignore[union-attr]
    assert world.join("a3", "c-1") is None
    assert world.group.state is GroupState.PREPARING_REBALANCE


def test_21_a_restored_group_goes_on_where_it_was() -> None:
    world = stable_pair()
    snapshot = world.group.snapshot()
    group = ClassicGroup.restored("g", world.settings, world.new_id, snapshot, world.now)
    assert group.snapshot() == snapshot
    assert group.heartbeat("c-2", None, 2, world.now) is ErrorCode.none
    group.tick(world.now + 10.1)
    assert group.state is GroupState.EMPTY


def test_22_a_killed_group_answers_everyone() -> None:
    world = stable_pair()
    world.join("c")
    world.perform(world.group.kill(ErrorCode.not_coordinator))
    assert world.joined["c"].error is ErrorCode.not_coordinator
    assert world.heartbeat("c-1", 2) is ErrorCode.coordinator_not_available
    assert world.join("d").error is ErrorCode.coordinator_not_available  # type: ignore[union-attr]


def test_23_a_retried_join_takes_the_place_of_the_first() -> None:
    world = stable_pair()
    world.join("c")
    world.join("a3", "c-1")
    world.join("a4", "c-1")
    assert world.joined["a3"].error is ErrorCode.rebalance_in_progress
    world.join("b3", "c-2")
    assert world.joined["a4"].generation == 3


def test_24_who_leaves_in_one_request_is_gone_before_the_others_rebalance() -> None:
    world = stable_pair()
    world.join("c")
    world.join("a3", "c-1")
    codes, effects = world.group.leave([("c-2", None), ("nobody", None), ("c-3", None)], world.now)
    world.perform(effects)
    unknown = ErrorCode.unknown_member_id
    assert codes == [ErrorCode.none, unknown, ErrorCode.none]
    assert world.joined["c"].error is unknown
    assert world.joined["a3"].generation == 3
    assert [member.member_id for member in world.joined["a3"].members] == ["c-1"]


def test_25_a_static_member_that_came_back_is_told_once_that_is_stored() -> None:
    world = World()
    world.join("a", instance_id="i")
    world.sync("s", "i-1", 1)
    world.store_at_once = False
    assert world.join("again", instance_id="i") is None
    token = world.stores[-1].token
    world.perform(world.group.stored(token, ErrorCode.not_coordinator, world.now))
    assert world.joined["again"].error is ErrorCode.not_coordinator
    assert world.join("more", instance_id="i") is None
    dynamic = world.join("dynamic")  # and with it a rebalance, which answers both
    assert dynamic is not None
    assert (world.joined["more"].generation, dynamic.generation) == (2, 2)
    world.perform(world.group.stored(world.stores[-1].token, None, world.now))


def test_26_while_a_full_group_rebalances_the_last_to_come_back_is_out() -> None:
    world = stable_pair(replace(NO_DELAY, max_size=2))
    full = ErrorCode.group_max_size_reached
    assert world.join("c").error is full  # type: ignore[union-attr]
    world.join("a3", "c-1")
    assert world.join("d") is None
    assert world.join("b3", "c-2").error is full  # type: ignore[union-attr]
    assert world.joined["d"].generation == world.joined["a3"].generation == 3


def test_27_an_id_that_was_given_out_is_not_for_a_static_member() -> None:
    world = World()
    world.join("static", instance_id="i")
    world.join("a", needs_known_member_id=True)
    result = world.join("b", "c-2", instance_id="i")
    assert result is not None
    assert result.error is ErrorCode.unknown_server_error


def test_28_a_lone_member_changes_only_to_what_it_speaks_already() -> None:
    world = World()
    world.join("a")
    changed = world.join("a2", "c-1", protocols=(("sticky", b""),))
    assert changed is not None
    assert changed.error is ErrorCode.inconsistent_group_protocol
    assert world.join("a3", "c-1", protocols=(("roundrobin", b""),)).generation == 2  # type: ignore[union-attr]


@measured
def test_a_request_of_a_rebalance_costs_the_same_however_many_members_there_are() -> None:
    """With 5,000 members each look at all of them in each request takes many seconds."""
    world = World(GroupSettings(record_max=10_000_000))
    group = world.group
    began = time.thread_time()
    for number in range(5_000):
        world.join(f"first-{number}")
        assert group.next_deadline() is not None
    world.after(3.1)
    world.after(3.1)
    ids = [member.member_id for member in group.members]
    for round_ in range(2):
        for member_id in ids:
            world.sync(f"sync-{round_}-{member_id}", member_id, group.generation)
            assert group.next_deadline() is not None
        assert group.state is GroupState.STABLE
        for member_id in ids:
            assert world.heartbeat(member_id, group.generation) is ErrorCode.none
        for member_id in ids:
            world.join(f"join-{round_}-{member_id}", member_id)
            assert group.next_deadline() is not None
    world.after(70)
    assert group.state is GroupState.EMPTY
    check_within(time.thread_time() - began, 3.0)


def test_a_session_ends_in_time_after_others_were_prolonged_or_shortened() -> None:
    world = stable_pair()
    world.after(4)
    assert world.heartbeat("c-1", 2) is ErrorCode.none
    assert world.group.next_deadline() == 110.0, "of the member that sent nothing"
    world.join("c", "c-1", session_timeout_ms=6_000)
    assert "c" not in world.joined, "it waits, and cannot expire"
    world.after(6)
    assert [member.member_id for member in world.group.members] == ["c-1"]
    assert world.joined["c"].generation == 3
    assert world.group.next_deadline() == 116.0
    world.after(6)
    assert world.group.state is GroupState.EMPTY
    assert world.group.next_deadline() is None
