"""Random members against the group's state machine: whatever they do, nobody waits for ever.

Each client is driven as a real one would be, but is allowed to retry, to fall silent, to lie about
its generation and to lose answers. After every step the invariants of the module's docstring hold.
"""

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    invariant,
    multiple,
    rule,
)
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.classic_group import ClassicGroup
from lakehead.broker.coordinator.group.messages import (
    Effect,
    GroupSettings,
    GroupState,
    Joined,
    JoinRequest,
    JoinResult,
    Store,
    Synced,
    SyncRequest,
)
from tests.support.repetitions import examples

PROTOCOL_SETS = (
    (("range", b"r"), ("sticky", b"s")),
    (("sticky", b"s"),),
    (("sticky", b"s2"), ("range", b"r2")),
)


@dataclass(eq=False)
class Client:
    """What one client knows of itself."""

    instance_id: str | None
    protocols: tuple[tuple[str, bytes], ...]
    needs_id: bool
    member_id: str = ""
    generation: int = -1
    told: JoinResult = field(default_factory=JoinResult)


class GroupMachine(RuleBasedStateMachine):
    """Members come, go, retry and fall silent; storing succeeds late, early or never."""

    clients: Bundle[Client] = Bundle("clients")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.ids = 0
        self.tickets = 0
        self.open_joins: dict[int, Client] = {}
        self.open_syncs: dict[int, tuple[Client, int]] = {}
        self.stores: list[Store] = []
        self.assigned: dict[int, dict[str, bytes]] = {}
        self.leaders: dict[int, str] = {}
        config = GroupSettings(initial_rebalance_delay_ms=2_000, max_size=5)
        self.group = ClassicGroup("g", config, self.new_id)

    def new_id(self, prefix: str) -> str:
        self.ids += 1
        return f"{prefix}-{self.ids}"

    def perform(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Joined():
                    client = self.open_joins.pop(effect.ticket)  # KeyError: answered twice
                    self.on_joined(client, effect.result)
                case Synced():
                    client, generation = self.open_syncs.pop(effect.ticket)
                    if effect.result.error is ErrorCode.none:
                        expected = self.assigned[generation].get(client.member_id, b"")
                        # A static member's successor has its predecessor's assignment.
                        if client.instance_id is None:
                            assert effect.result.assignment == expected
                case Store():
                    self.stores.append(effect)

    def on_joined(self, client: Client, result: JoinResult) -> None:
        if result.error is ErrorCode.none:
            client.member_id = result.member_id
            client.generation = result.generation
            client.told = result
            if result.members and not result.skip_assignment:
                # One leader per generation, unless a static leader changed its id.
                leader = self.leaders.setdefault(result.generation, result.member_id)
                assert leader == result.member_id or client.instance_id is not None
        elif result.error is ErrorCode.member_id_required:
            assert client.member_id == ""
            client.member_id = result.member_id
        elif result.error in {ErrorCode.unknown_member_id, ErrorCode.fenced_instance_id}:
            client.member_id = ""

    @rule(
        target=clients,
        static=st.sampled_from([None, None, None, "i1", "i2"]),
        protocols=st.sampled_from(PROTOCOL_SETS),
        needs_id=st.booleans(),
    )
    def arrive(
        self, static: str | None, protocols: tuple[tuple[str, bytes], ...], needs_id: bool
    ) -> Client | MultipleResults[Client]:
        if self.ids > 40:
            return multiple()
        return Client(static, protocols, needs_id)

    @rule(client=clients, forgets=st.sampled_from([False] * 5 + [True]))
    def join(self, client: Client, forgets: bool) -> None:
        if forgets:
            client.member_id = ""
        self.tickets += 1
        self.open_joins[self.tickets] = client
        request = JoinRequest(
            member_id=client.member_id,
            instance_id=client.instance_id,
            client_id="c",
            client_host="h",
            session_timeout_ms=10_000,
            rebalance_timeout_ms=20_000,
            protocol_type="consumer",
            protocols=client.protocols,
            needs_known_member_id=client.needs_id,
            can_skip_assignment=True,
        )
        self.perform(self.group.join(request, self.tickets, self.now))

    @rule(client=clients, lie=st.sampled_from([0] * 8 + [1, -1]))
    def sync(self, client: Client, lie: int) -> None:
        self.tickets += 1
        generation = client.generation + lie
        assignments: tuple[tuple[str, bytes], ...] = ()
        if client.told.members:
            assignments = tuple(
                (m.member_id, f"{generation}:{m.member_id}".encode()) for m in client.told.members
            )
            if not lie and generation not in self.assigned:
                self.assigned[generation] = dict(assignments)
        self.open_syncs[self.tickets] = (client, generation)
        request = SyncRequest(
            member_id=client.member_id,
            instance_id=client.instance_id,
            generation=generation,
            protocol_type="consumer",
            protocol_name=None,
            assignments=assignments,
        )
        self.perform(self.group.sync(request, self.tickets, self.now))

    @rule(chosen=st.lists(clients, min_size=1, max_size=4), how_far=st.integers(1, 3))
    def rally(self, chosen: list[Client], how_far: int) -> None:
        """Well-behaved clients get the group (nearly) to a stable generation."""
        chosen = list({id(client): client for client in chosen}.values())
        for client in chosen + chosen:
            if client not in self.open_joins.values():
                self.join(client, False)
        self.wait(2.1)
        self.wait(2.1)
        if how_far >= 2:
            for client in chosen:
                self.sync(client, 0)
        if how_far >= 3:
            self.finish_store(True)

    @rule(ok=st.sampled_from([True, True, True, False]))
    def finish_store(self, ok: bool) -> None:
        if self.stores:
            store = self.stores.pop(0)
            error = None if ok else ErrorCode.coordinator_not_available
            self.perform(self.group.stored(store.token, error, self.now))

    @rule(client=clients)
    def heartbeat(self, client: Client) -> None:
        self.group.heartbeat(client.member_id, client.instance_id, client.generation, self.now)

    @rule(client=clients)
    def leave(self, client: Client) -> None:
        leaving = [(client.member_id, client.instance_id)]
        codes, effects = self.group.leave(leaving, self.now)
        self.perform(effects)
        if codes[0] is ErrorCode.none:
            assert client.member_id not in self.group.members

    @rule(seconds=st.sampled_from([0.1, 0.1, 1.0, 1.0, 2.1, 2.1, 6.0, 11.0, 21.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.perform(self.group.tick(self.now))

    @invariant()
    def waiting_members_are_those_with_open_requests(self) -> None:
        joins = {m.join_ticket for m in self.group.members if m.join_ticket is not None}
        syncs = {m.sync_ticket for m in self.group.members if m.sync_ticket is not None}
        assert joins == set(self.open_joins), "a JoinGroup was lost"
        assert syncs == set(self.open_syncs), "a SyncGroup was lost"

    @invariant()
    def states_mean_what_they_say(self) -> None:
        group = self.group
        ids = {m.member_id for m in group.members}
        assert not ids & set(group.pending)
        assert (group.state is GroupState.EMPTY) <= (not ids)
        if ids:
            assert group.members.leader in ids
        if group.state is GroupState.STABLE:
            assert ids
            assert all(client.instance_id for client in self.open_joins.values())
            assert not self.open_syncs
            for member in group.members:
                expected = self.assigned[group.generation]
                if member.instance_id is None:
                    assert member.assignment == expected.get(member.member_id, b"")
        elif self.open_joins:
            assert group.state is GroupState.PREPARING_REBALANCE

    @invariant()
    def somebody_who_waits_has_a_deadline(self) -> None:
        if self.open_joins or self.open_syncs:
            assert self.group.next_deadline() is not None or self.stores

    @invariant()
    def what_is_counted_of_members_is_what_they_are(self) -> None:
        members = self.group.members
        assert members.awaiting_join == sum(one.is_awaiting_join for one in members)
        assert members.cost == sum(one.cost for one in members)
        for name in ("range", "sticky"):
            assert members.all_speak(name) == all(name in one.protocol_names for one in members)
        for one in members:
            assert not one.can_expire or members.deadline <= one.session_deadline

    def teardown(self) -> None:
        """Left alone, the group answers everyone and becomes empty in bounded time."""
        for _ in range(200):
            while self.stores:
                store = self.stores.pop(0)
                self.perform(self.group.stored(store.token, None, self.now))
            deadline = self.group.next_deadline()
            if deadline is None:
                break
            self.now = max(self.now, deadline)
            self.perform(self.group.tick(self.now))
        assert not self.open_joins
        assert not self.open_syncs
        assert self.group.state is GroupState.EMPTY
        assert len(self.group.members) == 0


TestGroupMachine = GroupMachine.TestCase
TestGroupMachine.settings = settings(
    max_examples=examples(150), stateful_step_count=40, deadline=None, derandomize=True
)
