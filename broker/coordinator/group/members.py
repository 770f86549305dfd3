"""The members of one classic group: identities, waiting requests, common protocol, memory."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from lakehead.broker.coordinator.group.messages import (
    JoinedMember,
    JoinRequest,
    MemberSnapshot,
    Ticket,
)

GROUP_COST = 1024
"""Bytes that a group costs beside its name and its members."""
MEMBER_OBJECTS = 512
"""Bytes that a member costs beside its texts and protocols: it is kept, and stored once more."""
_MEMBER_COST, _PROTOCOL_COST = 128, 16
"""Bytes that a member, and a protocol of it, cost beside their texts."""
_PENDING_MAX = 1 << 20


def cost_of(texts: Iterable[str | None], protocols: Iterable[tuple[str, bytes]] = ()) -> int:
    """Return the memory that a member with these texts and protocols is counted with, in bytes."""
    return (
        _MEMBER_COST
        + sum(len(text) for text in texts if text)
        + sum(_PROTOCOL_COST + len(name) + len(metadata) for name, metadata in protocols)
    )


class GroupMemory:
    """The memory of all groups of a node (`group.memory.size`): `capacity` bytes.

    Groups that are loaded from the log are counted even if they exceed it.
    """

    def __init__(self, capacity: float = math.inf) -> None:
        self.capacity = capacity
        self.used = 0

    @property
    def room(self) -> float:
        """Bytes that groups may still grow by; negative if the loaded groups exceed the
        capacity.
        """
        return self.capacity - self.used

    def change(self, before: int, after: int) -> None:
        """Count a group that took `before` bytes and takes `after` bytes now."""
        self.used += after - before
        assert self.used >= 0, "more was given back than taken"


class PendingIds:
    """Member ids that were given out with MEMBER_ID_REQUIRED, until they are used or forgotten: the
    oldest first, where clients take more than there is room for.
    """

    def __init__(self) -> None:
        self.size = 0
        """Bytes that they are counted with."""
        self.deadline = math.inf
        """No id is to be forgotten before."""
        self._deadlines: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._deadlines)

    def __iter__(self) -> Iterator[str]:
        return iter(self._deadlines)

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._deadlines

    def add(self, member_id: str, deadline: float) -> None:
        """Keep an id until a time, in monotonic seconds."""
        self._deadlines[member_id] = deadline
        self.deadline = min(self.deadline, deadline)
        self.size += cost_of((member_id,))
        while self.size > _PENDING_MAX:
            self.discard(next(iter(self._deadlines)))

    def discard(self, member_id: str) -> None:
        """Forget an id, if it is known."""
        if self._deadlines.pop(member_id, None) is not None:
            self.size -= cost_of((member_id,))

    def expire(self, now: float) -> bool:
        """Forget the ids whose time is over; return true if there were some."""
        if self.deadline > now:
            return False
        over = [one for one, until in self._deadlines.items() if until <= now]
        for member_id in over:
            self.discard(member_id)
        self.deadline = min(self._deadlines.values(), default=math.inf)
        return bool(over)


@dataclass(slots=True, kw_only=True)
class Member:
    """One member. Deadlines are monotonic seconds."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]
    assignment: bytes = b""
    session_deadline: float = 0.0
    is_new: bool = True
    """Until its first rebalance completes."""
    has_synced: bool = False
    """True if it sent SyncGroup in this generation."""
    join_ticket: Ticket | None = None
    sync_ticket: Ticket | None = None
    cost: int = field(init=False)
    """The memory that it is counted with, in bytes."""

    def __post_init__(self) -> None:
        texts = self.member_id, self.instance_id, self.client_id, self.client_host
        self.cost = cost_of(texts, self.protocols)

    @classmethod
    def restored(cls, stored: MemberSnapshot, protocol_name: str | None, now: float) -> "Member":
        """Return a stored member; it has a session timeout to show that it lives."""
        return cls(
            member_id=stored.member_id,
            instance_id=stored.instance_id,
            client_id=stored.client_id,
            client_host=stored.client_host,
            rebalance_timeout_ms=stored.rebalance_timeout_ms,
            session_timeout_ms=stored.session_timeout_ms,
            protocols=((protocol_name or "", stored.subscription),),
            assignment=stored.assignment,
            session_deadline=now + stored.session_timeout_ms / 1000,
            is_new=False,
            has_synced=True,
        )

    @classmethod
    def joining(
        cls, member_id: str, request: JoinRequest, ticket: Ticket, deadline: float
    ) -> "Member":
        """Return a new member that waits for its first rebalance, silent until `deadline`."""
        return cls(
            member_id=member_id,
            instance_id=request.instance_id,
            client_id=request.client_id,
            client_host=request.client_host,
            rebalance_timeout_ms=request.rebalance_timeout_ms,
            session_timeout_ms=request.session_timeout_ms,
            protocols=request.protocols,
            session_deadline=deadline,
            join_ticket=ticket,
        )

    @property
    def is_awaiting_join(self) -> bool:
        """Return true if a JoinGroup of it waits for its response."""
        return self.join_ticket is not None

    @property
    def can_expire(self) -> bool:
        """Return true if silence counts: an old member that waits for us has nothing to send."""
        return self.is_new or (self.join_ticket is None and self.sync_ticket is None)

    @property
    def protocol_names(self) -> set[str]:
        """The names of the protocols that it speaks."""
        return {name for name, _ in self.protocols}

    def metadata(self, protocol_name: str | None) -> bytes:
        """Return its metadata for a protocol; empty when it does not speak it."""
        for name, metadata in self.protocols:
            if name == protocol_name:
                return metadata
        return b""

    def adopt(self, request: JoinRequest) -> None:
        """Take over what a new JoinGroup of this member says."""
        self.client_id = request.client_id
        self.client_host = request.client_host
        self.rebalance_timeout_ms = request.rebalance_timeout_ms
        self.session_timeout_ms = request.session_timeout_ms
        self.protocols = request.protocols
        self.__post_init__()

    def snapshot(self, protocol_name: str | None) -> MemberSnapshot:
        """Return the member as it is stored."""
        return MemberSnapshot(
            member_id=self.member_id,
            instance_id=self.instance_id,
            client_id=self.client_id,
            client_host=self.client_host,
            rebalance_timeout_ms=self.rebalance_timeout_ms,
            session_timeout_ms=self.session_timeout_ms,
            subscription=self.metadata(protocol_name),
            assignment=self.assignment,
        )


@dataclass(slots=True)
class Members:
    """The members by id, in order of arrival, and the ids of the static ones by instance.

    A group may have thousands of members, of which each sends several requests in a rebalance: what
    each of these requests needs to know of all members is counted, and not looked for.
    """

    leader: str | None = None
    cost: int = 0
    """Bytes that they are counted with."""
    awaiting_join: int = 0
    """Members that wait for the rebalance."""
    deadline: float = math.inf
    """No session ends before; `renew_deadline` makes it exact."""
    _by_id: dict[str, Member] = field(default_factory=dict)
    _by_instance: dict[str, str] = field(default_factory=dict)
    _speakers: Counter[str] = field(default_factory=Counter)
    """Members that speak a protocol, by its name: their number."""

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Member]:
        return iter(self._by_id.values())

    def __contains__(self, member_id: str) -> bool:
        return member_id in self._by_id

    def get(self, member_id: str) -> Member | None:
        """Return the member with this id."""
        return self._by_id.get(member_id)

    def of_instance(self, instance_id: str) -> Member | None:
        """Return the static member of this instance id."""
        member_id = self._by_instance.get(instance_id)
        return None if member_id is None else self._by_id[member_id]

    def add(self, member: Member) -> None:
        """Add a member; the first one leads."""
        assert member.member_id not in self._by_id
        self._by_id[member.member_id] = member
        self.cost += member.cost
        self.awaiting_join += member.is_awaiting_join
        self._speakers.update(member.protocol_names)
        self._expect(member)
        if member.instance_id is not None:
            assert member.instance_id not in self._by_instance
            self._by_instance[member.instance_id] = member.member_id
        if self.leader is None:
            self.leader = member.member_id

    def remove(self, member: Member) -> None:
        """Remove a member; if it led, the next in order that waits for the rebalance (or any)
        leads.
        """
        del self._by_id[member.member_id]
        self.cost -= member.cost
        self.awaiting_join -= member.is_awaiting_join
        self._silence(member.protocol_names)
        if member.instance_id is not None:
            del self._by_instance[member.instance_id]
        if self.leader == member.member_id:
            waiting = (other.member_id for other in self if other.is_awaiting_join)
            first = next(waiting, None) if self.awaiting_join else None
            self.leader = next(iter(self._by_id), None) if first is None else first

    def adopt(self, member: Member, request: JoinRequest) -> None:
        """Let a member take over what its new JoinGroup says."""
        before = member.protocol_names
        self.cost -= member.cost
        member.adopt(request)
        self.cost += member.cost
        if before != member.protocol_names:
            self._silence(before)
            self._speakers.update(member.protocol_names)

    def touch(self, member: Member, now: float) -> None:
        """Record a sign of life: the session of a member starts again."""
        member.session_deadline = now + member.session_timeout_ms / 1000
        self._expect(member)

    def await_join(self, member: Member, ticket: Ticket) -> None:
        """Have a JoinGroup of a member, for which none waits, wait for the rebalance."""
        assert member.join_ticket is None
        member.join_ticket = ticket
        self.awaiting_join += 1

    def end_join(self, member: Member) -> Ticket | None:
        """Return the ticket of the JoinGroup of a member, which waits no longer; None without
        one.
        """
        ticket, member.join_ticket = member.join_ticket, None
        if ticket is not None:
            self.awaiting_join -= 1
            self._expect(member)
        return ticket

    def end_sync(self, member: Member) -> Ticket | None:
        """Return the ticket of the SyncGroup of a member, which waits no longer; None without
        one.
        """
        ticket, member.sync_ticket = member.sync_ticket, None
        if ticket is not None:
            self._expect(member)
        return ticket

    def renew_deadline(self) -> None:
        """Find the end of the first session, after those that were over have ended."""
        self.deadline = math.inf
        for member in self:
            self._expect(member)

    def rename(self, member: Member, member_id: str) -> None:
        """Give a static member that came back its new id, at its old place."""
        old_id = member.member_id
        member.member_id = member_id
        self._by_id = {other.member_id: other for other in self._by_id.values()}
        assert member.instance_id is not None
        self._by_instance[member.instance_id] = member_id
        if self.leader == old_id:
            self.leader = member_id

    def elect_joined_leader(self) -> bool:
        """Make a member that waits for the rebalance the leader, keeping the present one if it
        does.
        """
        leader = self._by_id.get(self.leader or "")
        if leader is not None and leader.is_awaiting_join:
            return True
        for member in self:
            if member.is_awaiting_join:
                self.leader = member.member_id
                return True
        return False

    def have_all_joined(self) -> bool:
        """Return true if everyone waits for the rebalance to complete."""
        return self.awaiting_join == len(self)

    def all_speak(self, protocol_name: str) -> bool:
        """Return true if every member speaks a protocol."""
        return self._speakers[protocol_name] == len(self)

    def select_protocol(self) -> str | None:
        """Return the protocol most members put first among those that all speak; ties go to the
        leader's order.
        """
        leader = self._by_id.get(self.leader or "")
        # max() keeps the first of equals, and the leader's list is in its order of preference.
        preferred = () if leader is None else leader.protocols
        order = [name for name, _ in preferred if self.all_speak(name)]
        if len(order) < 2:
            return next(iter(order), None)
        common = set(order)
        votes = Counter(
            next(name for name, _ in member.protocols if name in common) for member in self
        )
        return max(order, key=lambda name: votes[name])

    def rebalance_timeout_ms(self) -> int:
        """Return the time that a rebalance may take: the longest that any member requested."""
        return max((member.rebalance_timeout_ms for member in self), default=0)

    def view(self, protocol_name: str | None) -> tuple[JoinedMember, ...]:
        """Return the members as the leader reads them."""
        return tuple(
            JoinedMember(
                member_id=member.member_id,
                instance_id=member.instance_id,
                metadata=member.metadata(protocol_name),
            )
            for member in self
        )

    def _silence(self, protocol_names: Iterable[str]) -> None:
        """Count one member less that speaks these protocols."""
        for name in protocol_names:
            self._speakers[name] -= 1
            if not self._speakers[name]:
                del self._speakers[name]

    def _expect(self, member: Member) -> None:
        """See to it that the deadline is not after the end of a member's session."""
        if member.can_expire and member.session_deadline < self.deadline:
            self.deadline = member.session_deadline
