"""Values that go into and come out of a group's state machine: requests, results and effects.

A *ticket* stands for a response that is owed: the caller passes one with a request that may have to
wait, and gets it back in exactly one `Joined` or `Synced` effect. The state machine never looks
into a ticket.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

Ticket: TypeAlias = Any
"""The caller's handle for the response; the broker uses a future."""

NO_GENERATION = -1
UNKNOWN_MEMBER = ""
TEXT_SIZE_MAX = 32_000
"""Bytes of a text that is stored: its length is 16 bits, and a member id adds to its prefix."""


class TransactionalMember(NamedTuple):
    """In whose name a producer commits offsets: empty, None and -1 for no member at all."""

    group_id: str
    member_id: str
    instance_id: str | None
    generation: int


class GroupState(Enum):
    """States; the values are what DescribeGroups and ListGroups say. Classic groups rebalance, and
    consumer groups assign and reconcile.
    """

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    ASSIGNING = "Assigning"
    RECONCILING = "Reconciling"
    STABLE = "Stable"
    DEAD = "Dead"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSettings:
    """Limits of the classic protocol, named as Kafka's broker settings are."""

    min_session_timeout_ms: int = 6_000
    max_session_timeout_ms: int = 1_800_000
    initial_rebalance_delay_ms: int = 3_000
    max_size: int = 2_147_483_647
    record_max: int = 1_048_588
    """Longest record of a group that is stored, in bytes (`message.max.bytes`)."""
    new_member_join_timeout_ms: int = 300_000
    """Time that a member may stay silent while it waits for its first rebalance: its connection may
    be gone.
    """
    is_standby: bool = False
    """True if the groups are those of a cluster that is only copied here: their members send
    heartbeats there, and none of them is removed here.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinRequest:
    """A JoinGroup request. Timeouts in milliseconds; protocols as (name, metadata), best first."""

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[tuple[str, bytes], ...]
    needs_known_member_id: bool
    """v4 and later: a first join gets an id and MEMBER_ID_REQUIRED, so that lost responses leave no
    ghosts (KIP-394).
    """
    can_skip_assignment: bool
    """v9 and later: a returning static leader may get the flag to keep the assignment (KIP-814)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedMember:
    """One member as the leader sees it."""

    member_id: str
    instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinResult:
    """The response to JoinGroup. `members` is filled for the leader alone."""

    error: ErrorCode = ErrorCode.none
    member_id: str = UNKNOWN_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol_name: str | None = None
    leader: str = UNKNOWN_MEMBER
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRequest:
    """A SyncGroup request; `assignments` come from the leader, by member id."""

    member_id: str
    instance_id: str | None
    generation: int
    protocol_type: str | None
    protocol_name: str | None
    assignments: tuple[tuple[str, bytes], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncResult:
    """The response to SyncGroup."""

    error: ErrorCode = ErrorCode.none
    protocol_type: str | None = None
    protocol_name: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberSnapshot:
    """A member as it is stored and described. `subscription` is its metadata for the chosen
    protocol.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSnapshot:
    """A group as it is stored: one generation with its assignment, or an empty group."""

    protocol_type: str
    generation: int
    protocol_name: str | None
    leader: str | None
    members: tuple[MemberSnapshot, ...]
    state_timestamp_ms: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """Effect: complete the JoinGroup of `ticket`."""

    ticket: Ticket
    result: JoinResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Synced:
    """Effect: complete the SyncGroup of `ticket`."""

    ticket: Ticket
    result: SyncResult


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Effect: store `snapshot`, then call the group's `stored(token, error)`."""

    snapshot: GroupSnapshot
    token: int


Effect: TypeAlias = Joined | Synced | Store
