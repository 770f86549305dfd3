"""The classic consumer group protocol as a synchronous state machine.

`ClassicGroup` takes one event at a time together with the present monotonic time, changes its state
and returns effects for the caller to perform: responses to requests that waited, and snapshots to
store. It has no socket, log, task or clock. (KIP-62, KIP-134, KIP-345, KIP-394, KIP-814.)

States, as Kafka names them::

    Empty                a member joins -> PreparingRebalance
    PreparingRebalance   all have joined, or time is up -> CompletingRebalance; none left -> Empty
    CompletingRebalance  the leader's assignment is stored -> Stable
    Stable               a member joins, leaves, changes or falls silent -> PreparingRebalance
    Dead                 deleted, or given up by this node; final

Invariants: a generation number is used once; a request that waits is completed exactly once
(`Joined` or `Synced`); in Stable every member has the assignment of this generation; a member id is
either pending, or a member, or unknown.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Self

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer_protocol import CONSUMER
from lakehead.broker.coordinator.group.members import (
    MEMBER_OBJECTS,
    Member,
    Members,
    PendingIds,
    cost_of,
)
from lakehead.broker.coordinator.group.messages import (
    TEXT_SIZE_MAX,
    UNKNOWN_MEMBER,
    Effect,
    GroupSettings,
    GroupSnapshot,
    GroupState,
    Joined,
    JoinRequest,
    JoinResult,
    Store,
    Synced,
    SyncRequest,
    SyncResult,
    Ticket,
)

_WITHOUT_MEMBER_ID = {ErrorCode.group_max_size_reached, ErrorCode.unknown_server_error}
"""Errors of JoinGroup whose response does not repeat the member id."""
_MEMORY_PER_RECORD = 2
"""The memory that members of a group may take, as a multiple of its longest record."""


class _Effects:
    """Gathers the effects of one event."""

    def __init__(self) -> None:
        self._effects: list[Effect] = []
        self._last_token = 0

    def take(self) -> list[Effect]:
        """Return the gathered effects and start again with none."""
        effects, self._effects = self._effects, []
        return effects

    def joined(self, ticket: Ticket, result: JoinResult) -> None:
        """Complete a JoinGroup."""
        self._effects.append(Joined(ticket=ticket, result=result))

    def synced(self, ticket: Ticket, result: SyncResult) -> None:
        """Complete a SyncGroup."""
        self._effects.append(Synced(ticket=ticket, result=result))

    def store(self, snapshot: GroupSnapshot, assignments: dict[str, bytes]) -> int:
        """Add the effect of storing a generation with these assignments; return the store's
        token.
        """
        self._last_token += 1
        members = tuple(
            replace(member, assignment=assignments.get(member.member_id, b""))
            for member in snapshot.members
        )
        stored = replace(snapshot, members=members)
        self._effects.append(Store(snapshot=stored, token=self._last_token))
        return self._last_token


class ClassicGroup:
    """One classic group. `new_member_id(prefix)` makes ids that are never used twice.

    Every public event method returns the effects in the order in which they are to be performed.
    """

    def __init__(
        self, group_id: str, settings: GroupSettings, new_member_id: Callable[[str], str]
    ) -> None:
        self.group_id = group_id
        self.state = GroupState.EMPTY
        self.generation = 0
        self.protocol_type = ""
        self.protocol_name: str | None = None
        self.members = Members()
        self.pending = PendingIds()
        self._settings = settings
        self._new_member_id = new_member_id
        self._outbox = _Effects()
        self._rebalance_deadline: float | None = None
        self._initial_remaining_ms: int | None = None
        """During the first rebalance: how much longer it may be put off for members that still
        arrive.
        """
        self._has_newcomers = False
        self._sync_deadline: float | None = None
        self._storing: tuple[int, dict[str, bytes]] | None = None
        self._returning: dict[int, tuple[Member, Ticket, JoinResult]] = {}
        """Static members that came back and get their response once that is stored, by its
        token.
        """

    @classmethod
    def restored(
        cls,
        group_id: str,
        settings: GroupSettings,
        new_member_id: Callable[[str], str],
        snapshot: GroupSnapshot,
        now: float,
    ) -> Self:
        """Return the group as the log has it. Its members have a session timeout to send a sign of
        life.
        """
        group = cls(group_id, settings, new_member_id)
        group.generation = snapshot.generation
        group.protocol_type = snapshot.protocol_type
        group.protocol_name = snapshot.protocol_name
        for stored in snapshot.members:
            group.members.add(Member.restored(stored, snapshot.protocol_name, now))
        if snapshot.members:
            group.state = GroupState.STABLE
            group.members.leader = snapshot.leader
        return group

    @classmethod
    def downgraded(
        cls,
        group_id: str,
        settings: GroupSettings,
        new_member_id: Callable[[str], str],
        generation: int,
        members: Sequence[Member],
    ) -> Self:
        """Return a stable group of the members that a consumer group had, which all speak a
        protocol in common and have their assignments.
        """
        group = cls(group_id, settings, new_member_id)
        group.generation = generation
        group.protocol_type = CONSUMER
        for member in members:
            group.members.add(member)
        group.protocol_name = group.members.select_protocol()
        group.state = GroupState.STABLE
        return group

    @property
    def cost(self) -> int:
        """The memory that its members are counted with, in bytes."""
        return self.members.cost + MEMBER_OBJECTS * len(self.members) + self.pending.size

    def join(
        self, request: JoinRequest, ticket: Ticket, now: float, room: float = math.inf
    ) -> list[Effect]:
        """Handle a JoinGroup request. `Joined` completes it, now or when the rebalance completes.
        `room`: bytes that the groups of the node may still grow by.
        """
        error = self._refuse_join(request, room)
        if error is not None:
            is_named = error not in _WITHOUT_MEMBER_ID
            member_id = request.member_id if is_named else UNKNOWN_MEMBER
            self._outbox.joined(ticket, JoinResult(error=error, member_id=member_id))
            if error is ErrorCode.group_max_size_reached:
                self._forget(request.member_id)
                self._maybe_complete_join(now)
        elif request.member_id == UNKNOWN_MEMBER:
            self._join_unknown(request, ticket, now)
        elif request.member_id in self.pending:
            self.pending.discard(request.member_id)
            self._add_member(request.member_id, request, ticket, now)
        else:
            self._join_known(request, ticket, now)
        return self._outbox.take()

    def sync(self, request: SyncRequest, ticket: Ticket, now: float) -> list[Effect]:
        """Handle a SyncGroup request. `Synced` completes it, at the latest when the leader's
        assignment is stored.
        """
        error = self._refuse_sync(request)
        if error is not None:
            self._outbox.synced(ticket, SyncResult(error=error))
            return self._outbox.take()
        member = self.members.get(request.member_id)
        assert member is not None
        member.has_synced = True
        if self.state is GroupState.STABLE:
            self.members.touch(member, now)
            self._outbox.synced(ticket, self._assignment_of(member))
            return self._outbox.take()
        # One that waits is of another connection, which is gone.
        self._fail_sync(member, ErrorCode.rebalance_in_progress)
        member.sync_ticket = ticket
        if member.member_id == self.members.leader and self._storing is None:
            given = dict(request.assignments)
            assignments = {m.member_id: given.get(m.member_id, b"") for m in self.members}
            token = self._outbox.store(self.snapshot(), assignments)
            self._storing = (token, assignments)
        return self._outbox.take()

    def stored(self, token: int, error: ErrorCode | None, now: float) -> list[Effect]:
        """The outcome of a `Store` effect: None once it is durable."""
        if token in self._returning:
            self._complete_return(*self._returning.pop(token), error)
            return self._outbox.take()
        if self._storing is None or self._storing[0] != token:
            return []
        assignments = self._storing[1]
        self._storing = None
        if error is not None:
            for member in self.members:
                self._fail_sync(member, error)
            self._prepare_rebalance(now)
            return self._outbox.take()
        self.state = GroupState.STABLE
        for member in self.members:
            member.assignment = assignments.get(member.member_id, b"")
            ticket = self.members.end_sync(member)
            if ticket is not None:
                self.members.touch(member, now)
                self._outbox.synced(ticket, self._assignment_of(member))
        return self._outbox.take()

    def heartbeat(
        self, member_id: str, instance_id: str | None, generation: int, now: float
    ) -> ErrorCode:
        """A Heartbeat request. Never has effects."""
        error = self.refuse_heartbeat(member_id, instance_id, generation)
        if error is not None:
            return error
        self._touch(member_id, now)
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def leave(
        self, leaving: Sequence[tuple[str, str | None]], now: float
    ) -> tuple[list[ErrorCode], list[Effect]]:
        """A LeaveGroup request, of (member id, instance id); a static member may come without its
        member id (KIP-345). The others rebalance once all of these are gone.
        """
        if self.state is GroupState.DEAD:
            return [ErrorCode.coordinator_not_available] * len(leaving), []
        codes = [self._leave(member_id, instance_id) for member_id, instance_id in leaving]
        if ErrorCode.none in codes and self.state is not GroupState.EMPTY:
            self._prepare_or_complete(now)
        return codes, self._outbox.take()

    def _leave(self, member_id: str, instance_id: str | None) -> ErrorCode:
        if member_id not in self.pending:
            if member_id == UNKNOWN_MEMBER and instance_id is not None:
                static = self.members.of_instance(instance_id)
                member_id = UNKNOWN_MEMBER if static is None else static.member_id
            error = check_member(self.members, member_id, instance_id)
            if error is not None:
                return ErrorCode.unknown_member_id if member_id == UNKNOWN_MEMBER else error
        self._forget(member_id)
        return ErrorCode.none

    def check_commit(
        self, member_id: str, instance_id: str | None, generation: int, now: float
    ) -> ErrorCode:
        """Return true if offsets may be committed in the name of this member; a sign of life."""
        error = self._refuse_commit(member_id, instance_id, generation)
        if error is None:
            self._touch(member_id, now)
        return error or ErrorCode.none

    def rebalance(self, now: float) -> list[Effect]:
        """Have the members join again, for a reason that is not one of theirs."""
        self._prepare_or_complete(now)
        return self._outbox.take()

    def tick(self, now: float) -> list[Effect]:
        """Let time pass: forget the silent, complete rebalances whose time is up."""
        if self.pending.expire(now):
            self._maybe_complete_join(now)
        if self.members.deadline <= now:
            for member in list(self.members):
                if member.can_expire and member.session_deadline <= now:
                    self._remove(member, now)
            self.members.renew_deadline()
        if self._rebalance_deadline is not None and self._rebalance_deadline <= now:
            self._end_of_rebalance_wait(now)
        if self._sync_deadline is not None and self._sync_deadline <= now:
            self._sync_deadline = None
            for member in [m for m in self.members if not m.has_synced]:
                self._remove(member, now)
        return self._outbox.take()

    def kill(self, error: ErrorCode) -> list[Effect]:
        """End the group here (deleted, or led by another node); requests that wait get `error`."""
        for member in self.members:
            self._fail_join(member, error)
            self._fail_sync(member, error)
        self.members = Members()
        self.pending = PendingIds()
        self._clear_rebalance()
        self.state = GroupState.DEAD
        return self._outbox.take()

    def next_deadline(self) -> float | None:
        """Return when `tick` may have something to do next, if nothing else happens: no later
        than it has.
        """
        deadlines = (
            *(self.members.deadline, self.pending.deadline),
            *(self._rebalance_deadline, self._sync_deadline),
        )
        first = min(deadline for deadline in deadlines if deadline is not None)
        return None if first == math.inf else first

    def snapshot(self) -> GroupSnapshot:
        """Return the group as it is now, for storing and describing."""
        return GroupSnapshot(
            protocol_type=self.protocol_type,
            generation=self.generation,
            protocol_name=self.protocol_name,
            leader=self.members.leader,
            members=tuple(member.snapshot(self.protocol_name) for member in self.members),
        )

    def _join_unknown(self, request: JoinRequest, ticket: Ticket, now: float) -> None:
        instance_id = request.instance_id
        member_id = self._new_member_id(request.client_id if instance_id is None else instance_id)
        if instance_id is not None:
            static = self.members.of_instance(instance_id)
            if static is not None:
                self._replace_static(static, member_id, request, ticket, now)
                return
        elif request.needs_known_member_id:
            self.pending.add(member_id, now + request.session_timeout_ms / 1000)
            result = JoinResult(error=ErrorCode.member_id_required, member_id=member_id)
            self._outbox.joined(ticket, result)
            return
        self._add_member(member_id, request, ticket, now)

    def _join_known(self, request: JoinRequest, ticket: Ticket, now: float) -> None:
        member = self.members.get(request.member_id)
        assert member is not None
        is_unchanged = member.protocols == request.protocols
        is_leader = member.member_id == self.members.leader
        is_repeat = (self.state is GroupState.COMPLETING_REBALANCE and is_unchanged) or (
            self.state is GroupState.STABLE and is_unchanged and not is_leader
        )
        if is_repeat:  # its response was lost, or nothing changed for a follower
            self.members.touch(member, now)
            self._outbox.joined(ticket, self._generation_for(member))
            return
        self._await_join(member, request, ticket)
        self._prepare_or_complete(now)

    def _add_member(self, member_id: str, request: JoinRequest, ticket: Ticket, now: float) -> None:
        deadline = now + self._settings.new_member_join_timeout_ms / 1000
        member = Member.joining(member_id, request, ticket, deadline)
        if not self.members:
            self.protocol_type = request.protocol_type
        self.members.add(member)
        self._has_newcomers = True
        self._prepare_or_complete(now)

    def _replace_static(
        self, member: Member, member_id: str, request: JoinRequest, ticket: Ticket, now: float
    ) -> None:
        """A static member came back: it takes its place under a new id; the old id is fenced."""
        self._fail_join(member, ErrorCode.fenced_instance_id)
        self._fail_sync(member, ErrorCode.fenced_instance_id)
        old_leader = self.members.leader
        self.members.rename(member, member_id)
        before = self.protocol_name
        self.members.adopt(member, request)
        self.members.touch(member, now)
        if self.state is not GroupState.STABLE or self.members.select_protocol() != before:
            self._await_join(member, request, ticket)
            self._prepare_or_complete(now)
            return
        self.members.await_join(member, ticket)
        result = self._unchanged_for(member, old_leader, request.can_skip_assignment)
        assignments = {m.member_id: m.assignment for m in self.members}
        token = self._outbox.store(self.snapshot(), assignments)
        self._returning[token] = member, ticket, result

    def _await_join(self, member: Member, request: JoinRequest, ticket: Ticket) -> None:
        # One that waits is of another connection, which is gone.
        self._fail_join(member, ErrorCode.rebalance_in_progress)
        self.members.adopt(member, request)
        self.members.await_join(member, ticket)

    def _prepare_or_complete(self, now: float) -> None:
        if self.state is GroupState.PREPARING_REBALANCE:
            self._maybe_complete_join(now)
        elif self.state is not GroupState.DEAD:
            self._prepare_rebalance(now)

    def _prepare_rebalance(self, now: float) -> None:
        is_first = self.state is GroupState.EMPTY
        for member in self.members:
            self._fail_sync(member, ErrorCode.rebalance_in_progress)
            if self.state is GroupState.COMPLETING_REBALANCE:
                member.assignment = b""  # of a generation before the one that was not completed
        self._clear_rebalance()
        self.state = GroupState.PREPARING_REBALANCE
        timeout_ms = self.members.rebalance_timeout_ms()
        delay_ms = self._settings.initial_rebalance_delay_ms
        if is_first and delay_ms > 0:
            self._has_newcomers = False
            self._initial_remaining_ms = max(timeout_ms - delay_ms, 0)
            self._rebalance_deadline = now + delay_ms / 1000
            return
        self._rebalance_deadline = now + timeout_ms / 1000
        if is_first:
            self._complete_join(now)
        else:
            self._maybe_complete_join(now)

    def _maybe_complete_join(self, now: float) -> None:
        if (
            self.state is GroupState.PREPARING_REBALANCE
            and self._initial_remaining_ms is None
            and not self.pending
            and self.members.have_all_joined()
        ):
            self._complete_join(now)

    def _end_of_rebalance_wait(self, now: float) -> None:
        remaining_ms = self._initial_remaining_ms
        if remaining_ms and self._has_newcomers:
            delay_ms = min(self._settings.initial_rebalance_delay_ms, remaining_ms)
            self._has_newcomers = False
            self._initial_remaining_ms = remaining_ms - delay_ms
            self._rebalance_deadline = now + delay_ms / 1000
            return
        self._complete_join(now)

    def _complete_join(self, now: float) -> None:
        for member in list(self.members):
            # Static members keep their place until their session ends.
            if not member.is_awaiting_join and member.instance_id is None:
                self.members.remove(member)
        self._clear_rebalance()
        if self.members and not self.members.elect_joined_leader():
            self._rebalance_deadline = now + self.members.rebalance_timeout_ms() / 1000
            return
        self.generation += 1
        self.protocol_name = self.members.select_protocol()
        if not self.members:
            self.state = GroupState.EMPTY
            self._outbox.store(self.snapshot(), {})
            return
        self.state = GroupState.COMPLETING_REBALANCE
        self._sync_deadline = now + self.members.rebalance_timeout_ms() / 1000
        for member in self.members:
            member.has_synced = False
            ticket = self.members.end_join(member)
            if ticket is not None:
                member.is_new = False
                self.members.touch(member, now)
                self._outbox.joined(ticket, self._generation_for(member))

    def _remove(self, member: Member, now: float) -> None:
        """Take a member out and rebalance the rest."""
        self._forget(member.member_id)
        self._prepare_or_complete(now)

    def _forget(self, member_id: str) -> None:
        """Remove a member id, and fail the requests that wait under it."""
        self.pending.discard(member_id)
        member = self.members.get(member_id)
        if member is not None:
            self._fail_join(member, ErrorCode.unknown_member_id)
            self._fail_sync(member, ErrorCode.unknown_member_id)
            self.members.remove(member)

    def _clear_rebalance(self) -> None:
        self._rebalance_deadline = None
        self._initial_remaining_ms = None
        self._sync_deadline = None
        self._storing = None

    def _touch(self, member_id: str, now: float) -> None:
        member = self.members.get(member_id)
        if member is not None:
            self.members.touch(member, now)

    def _fail_join(self, member: Member, error: ErrorCode) -> None:
        """Complete the JoinGroup of a member, if it waits for one, with an error. A member that is
        not known any more gets no id.
        """
        ticket = self.members.end_join(member)
        if ticket is not None:
            is_known = error is not ErrorCode.unknown_member_id
            member_id = member.member_id if is_known else UNKNOWN_MEMBER
            self._outbox.joined(ticket, JoinResult(error=error, member_id=member_id))

    def _fail_sync(self, member: Member, error: ErrorCode) -> None:
        """Complete the SyncGroup of a member, if it waits for one, with an error."""
        ticket = self.members.end_sync(member)
        if ticket is not None:
            self._outbox.synced(ticket, SyncResult(error=error))

    def _complete_return(
        self, member: Member, ticket: Ticket, result: JoinResult, error: ErrorCode | None
    ) -> None:
        """Complete the JoinGroup of a static member that came back, now that this is stored or has
        failed, unless it was completed meanwhile.
        """
        if member.join_ticket is not ticket:
            return
        if error is None:
            self._outbox.joined(self.members.end_join(member), result)
        else:
            self._fail_join(member, error)

    # Checks of requests.

    def _refuse_join(self, request: JoinRequest, room: float) -> ErrorCode | None:
        """Return why this JoinGroup cannot be taken, or None. `room`: bytes that all groups may
        grow by.
        """
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        has_place = self._has_room_for(request)
        if not (has_place and self._fits(request, room)):
            return ErrorCode.group_max_size_reached
        if not self._speaks_to_all(request):
            return ErrorCode.inconsistent_group_protocol
        if request.member_id in self.pending:
            # Only a dynamic member is given an id before it joins. Kafka knows no better error.
            return None if request.instance_id is None else ErrorCode.unknown_server_error
        if request.member_id == UNKNOWN_MEMBER:
            return None
        return check_member(self.members, request.member_id, request.instance_id)

    def _refuse_sync(self, request: SyncRequest) -> ErrorCode | None:
        """Return why this SyncGroup cannot be taken, or None."""
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        error = check_member(self.members, request.member_id, request.instance_id)
        if error is not None:
            return error
        if request.generation != self.generation:
            return ErrorCode.illegal_generation
        for given, ours in (
            (request.protocol_type, self.protocol_type),
            (request.protocol_name, self.protocol_name),
        ):
            if given is not None and given != ours:
                return ErrorCode.inconsistent_group_protocol
        if self.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return None

    def refuse_heartbeat(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode | None:
        """Return why this Heartbeat is not of a member of the present generation, or None."""
        if self.state is GroupState.DEAD:
            return ErrorCode.coordinator_not_available
        error = check_member(self.members, member_id, instance_id)
        if error is None and generation != self.generation:
            return ErrorCode.illegal_generation
        return error

    def _refuse_commit(
        self, member_id: str, instance_id: str | None, generation: int
    ) -> ErrorCode | None:
        """Return the error of an offset commit in the name of this member, or None.

        Without a generation the request is of an admin, or of a consumer that chooses its
        partitions itself: both may write while the group has no members.
        """
        if generation < 0 and self.state is GroupState.EMPTY:
            return None
        error = self.refuse_heartbeat(member_id, instance_id, generation)
        if error is None and self.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return error

    def _speaks_to_all(self, request: JoinRequest) -> bool:
        """Return true if the group goes on to have a protocol in common, as it is before this
        member changes what it speaks.
        """
        if not request.protocol_type or not request.protocols:
            return False
        if self.state is GroupState.EMPTY:
            return True
        if request.protocol_type != self.protocol_type:
            return False
        return any(self.members.all_speak(name) for name, _ in request.protocols)

    def _fits(self, request: JoinRequest, room: float) -> bool:
        """Return true if the members would be within the memory for one group (some protocols of
        each, of which one is stored), and grow by no more than the room for all groups.
        """
        texts = request.member_id, request.instance_id, request.client_id, request.client_host
        growth, known = cost_of(texts, request.protocols), self._member_of(request)
        if known is not None:
            growth -= known.cost
        if self.members.cost + growth > _MEMORY_PER_RECORD * self._settings.record_max:
            return False
        return growth + (MEMBER_OBJECTS if known is None else 0) <= max(room, 0)

    def _has_room_for(self, request: JoinRequest) -> bool:
        """Return true if a member may (re)join. While a group rebalances, those count that have
        rejoined: where there are too many, the last ones are out.
        """
        member = self._member_of(request)
        if self.state is GroupState.EMPTY:
            return True
        if self.state is GroupState.PREPARING_REBALANCE:
            return self.members.awaiting_join < self._settings.max_size or (
                member is not None and member.is_awaiting_join
            )
        return member is not None or len(self.members) < self._settings.max_size

    def _member_of(self, request: JoinRequest) -> Member | None:
        """Return the member that sends a JoinGroup, or that it replaces; None for a new one."""
        member = self.members.get(request.member_id)
        if request.instance_id is not None:
            member = self.members.of_instance(request.instance_id) or member
        return member

    # Responses.

    def _generation_for(self, member: Member) -> JoinResult:
        """Return the response to JoinGroup: all members for the leader, the leader for the
        others.
        """
        is_leader = member.member_id == self.members.leader
        return JoinResult(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=self.members.leader or UNKNOWN_MEMBER,
            members=self.members.view(self.protocol_name) if is_leader else (),
        )

    def _unchanged_for(
        self, member: Member, old_leader: str | None, can_skip_assignment: bool
    ) -> JoinResult:
        """Return the response to a static member that came back into an unchanged, stable
        generation.

        A leader must not compute an assignment without need: a client that knows the flag gets it
        to skip the assignment, an older one gets the old leader's id as leader (KIP-345, 814).
        """
        leader = self.members.leader if can_skip_assignment else old_leader
        skip = can_skip_assignment and member.member_id == leader
        return JoinResult(
            member_id=member.member_id,
            generation=self.generation,
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            leader=leader or UNKNOWN_MEMBER,
            skip_assignment=skip,
            members=self.members.view(self.protocol_name) if skip else (),
        )

    def _assignment_of(self, member: Member) -> SyncResult:
        """Return the response to SyncGroup in a stable generation."""
        return SyncResult(
            protocol_type=self.protocol_type,
            protocol_name=self.protocol_name,
            assignment=member.assignment,
        )


def check_member(members: Members, member_id: str, instance_id: str | None) -> ErrorCode | None:
    """Refuse a member that is not known, or whose instance id is held by another now (KIP-345)."""
    if instance_id is not None:
        static = members.of_instance(instance_id)
        if static is None:
            return ErrorCode.unknown_member_id
        return None if static.member_id == member_id else ErrorCode.fenced_instance_id
    return None if member_id in members else ErrorCode.unknown_member_id


def refuse_request(request: JoinRequest, settings: GroupSettings) -> ErrorCode | None:
    """Return why this JoinGroup is none, whatever the group, or None."""
    if not _is_storable(request):
        return ErrorCode.invalid_request
    timeout = request.session_timeout_ms
    if not settings.min_session_timeout_ms <= timeout <= settings.max_session_timeout_ms:
        return ErrorCode.invalid_session_timeout
    return None


def refuse_transactional_commit(
    group: ClassicGroup | None, member_id: str, instance_id: str | None, generation: int
) -> ErrorCode | None:
    """Return the error of an offset commit of a producer in the name of this member, or None
    (KIP-447).

    A producer without a member may commit: its epoch fences it.
    """
    if generation < 0 and not member_id and instance_id is None:
        return None
    if group is None:
        return None if generation < 0 else ErrorCode.illegal_generation
    if generation < 0 and group.state is GroupState.EMPTY:
        return None
    return group.refuse_heartbeat(member_id, instance_id, generation)


def _is_storable(request: JoinRequest) -> bool:
    """Return true if every text fits into a stored group, where lengths are 16 bits."""
    names = (name for name, _ in request.protocols)
    texts = (request.client_id, request.instance_id or "", request.protocol_type, *names)
    return all(len(text.encode()) <= TEXT_SIZE_MAX for text in texts)
