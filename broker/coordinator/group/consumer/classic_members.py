"""Members of the classic protocol in a consumer group, while it is upgraded or downgraded
(KIP-848).

To them the group is a classic one whose generation is their member epoch, and whose leader is
somewhere else. They join again as often as they have to give partitions back or may have more: a
heartbeat says so.
"""

import math
from collections import Counter
from collections.abc import Sequence

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.consumer.consumer_group import ConsumerGroup
from lakehead.broker.coordinator.group.consumer.consumer_members import (
    ClassicMetadata,
    ConsumerMember,
    MemberMetadata,
    MemberState,
)
from lakehead.broker.coordinator.group.consumer_protocol import (
    CONSUMER,
    Subscription,
    by_topic_id,
    read_subscription,
    subscription_version,
    write_assignment,
)
from lakehead.broker.coordinator.group.messages import (
    UNKNOWN_MEMBER,
    JoinRequest,
    JoinResult,
    SyncRequest,
    SyncResult,
)
from lakehead.broker.coordinator.record_reader import UnknownRecord
from lakehead.broker.protocol.errors import KafkaError


def join(
    group: ConsumerGroup, request: JoinRequest, new_id: str, now: float, room: float = math.inf
) -> JoinResult:
    """Handle a JoinGroup of a consumer: it has its partitions by SyncGroup. `new_id` is for a
    member without one. Raises KafkaError.
    """
    member_id = request.member_id or new_id
    group.refuse_new_member(member_id)
    if not _speaks_to_all(group, request):
        raise KafkaError(ErrorCode.inconsistent_group_protocol)
    is_unknown = request.member_id == UNKNOWN_MEMBER
    if is_unknown and request.instance_id is None and request.needs_known_member_id:
        return JoinResult(error=ErrorCode.member_id_required, member_id=member_id)
    subscription = _subscription(request)
    replaced = None
    if request.instance_id is None:
        before = group.members.get(member_id)
    elif is_unknown:
        before = replaced = group.store.static_member(request.instance_id)
    else:
        before = group.known(member_id, request.instance_id)
    known = MemberMetadata() if before is None else before.metadata
    metadata = MemberMetadata(
        instance_id=request.instance_id,
        rack_id=subscription.rack_id or known.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topics=subscription.topics,
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        assignor=known.assignor,
        classic=ClassicMetadata(
            session_timeout_ms=request.session_timeout_ms, protocols=request.protocols
        ),
    )
    group.refuse_growth(member_id, known, metadata, room)
    if replaced is not None:
        group.replace_member(replaced, member_id)
    has_new_subscription = group.describe(member_id, known, metadata)
    member = group.members[member_id]
    group.update_target(now)
    owned = by_topic_id(subscription.owned, group.catalog)
    group.reconcile(member, owned, now, has_new_subscription=has_new_subscription)
    group.touch(member, now)
    member.join_deadline = member.revocation_deadline = None
    member.sync_deadline = now + request.rebalance_timeout_ms / 1000
    group.watch(member.sync_deadline)
    return JoinResult(
        member_id=member_id,
        generation=member.current.epoch,
        protocol_type=CONSUMER,
        protocol_name=request.protocols[0][0],
    )


def sync(group: ConsumerGroup, request: SyncRequest, now: float) -> SyncResult:
    """Handle a SyncGroup: return what the member may have now. Raises KafkaError."""
    member, classic = _classic(group, request.member_id, request.instance_id)
    _refuse_generation(member, request.generation)
    name = classic.protocols[0][0]
    if request.protocol_type not in {None, CONSUMER} or request.protocol_name not in {None, name}:
        raise KafkaError(ErrorCode.inconsistent_group_protocol)
    if (
        group.store.target_epoch > member.current.epoch
        and member.current.state is not MemberState.UNREVOKED_PARTITIONS
    ):
        _expect_join(group, member, now)
        raise KafkaError(ErrorCode.rebalance_in_progress)
    member.sync_deadline = None
    group.touch(member, now)
    version = subscription_version(classic.protocols[0][1])
    return SyncResult(
        protocol_type=CONSUMER,
        protocol_name=name,
        assignment=write_assignment(member.current.assigned, group.catalog, version),
    )


def heartbeat(
    group: ConsumerGroup, member_id: str, instance_id: str | None, generation: int, now: float
) -> ErrorCode:
    """Handle a Heartbeat: return whether the member has to join again. Raises KafkaError."""
    member, _ = _classic(group, member_id, instance_id)
    _refuse_generation(member, generation)
    group.touch(member, now)
    if all(one.is_classic for one in group.members.values()):
        group.update_target(now)  # no heartbeat of the consumer protocol will
    state = member.current.state
    if (
        member.current.epoch < group.store.target_epoch
        or state is MemberState.UNREVOKED_PARTITIONS
        or (state is MemberState.UNRELEASED_PARTITIONS and not _is_waiting(group, member))
    ):
        _expect_join(group, member, now)
        return ErrorCode.rebalance_in_progress
    return ErrorCode.none


def leave(group: ConsumerGroup, leaving: Sequence[tuple[str, str | None]]) -> list[ErrorCode]:
    """Handle a LeaveGroup, of (member id, instance id); return a code for each. It removes members
    of both protocols, as in Kafka 4.3.
    """
    codes, gone = [], {}
    for member_id, instance_id in leaving:
        try:
            named = member_id
            if instance_id is not None and member_id == UNKNOWN_MEMBER:
                static = group.store.static_member(instance_id)
                named = UNKNOWN_MEMBER if static is None else static.member_id
            member = group.known(named, instance_id)
        except KafkaError as error:
            codes.append(error.code)
            continue
        codes.append(
            ErrorCode.none if member.member_id not in gone else ErrorCode.unknown_member_id
        )
        gone[member.member_id] = member
    group.remove(gone.values())
    return codes


def _classic(
    group: ConsumerGroup, member_id: str, instance_id: str | None
) -> tuple[ConsumerMember, ClassicMetadata]:
    """Return a member that speaks the classic protocol. Raises UNKNOWN_MEMBER_ID,
    FENCED_INSTANCE_ID.
    """
    member = group.known(member_id, instance_id)
    if member.metadata.classic is None:
        raise KafkaError(
            ErrorCode.unknown_member_id, f"Member {member_id} does not use the classic protocol."
        )
    return member, member.metadata.classic


def _refuse_generation(member: ConsumerMember, generation: int) -> None:
    if generation != member.current.epoch:
        raise KafkaError(ErrorCode.illegal_generation)


def _expect_join(group: ConsumerGroup, member: ConsumerMember, now: float) -> None:
    """Give a member its rebalance timeout to join again."""
    if member.join_deadline is None:
        member.join_deadline = now + member.metadata.rebalance_timeout_ms / 1000
        group.watch(member.join_deadline)


def _is_waiting(group: ConsumerGroup, member: ConsumerMember) -> bool:
    """Return true if all that a member misses of its target is with other members still."""
    return not any(
        index not in member.current.assigned.get(topic_id, ())
        and group.store.is_free(topic_id, index)
        for topic_id, indexes in member.target.items()
        for index in indexes
    )


def _speaks_to_all(group: ConsumerGroup, request: JoinRequest) -> bool:
    """Return true for a consumer with a protocol that every other classic member speaks."""
    if request.protocol_type != CONSUMER or not request.protocols:
        return False
    classics = [
        m.metadata.classic for m in group.members.values() if m.metadata.classic is not None
    ]
    votes = Counter(name for classic in classics for name, _ in classic.protocols)
    return not classics or any(votes[name] == len(classics) for name, _ in request.protocols)


def _subscription(request: JoinRequest) -> Subscription:
    try:
        return read_subscription(request.protocols[0][1])
    except UnknownRecord as error:
        raise KafkaError(ErrorCode.unknown_server_error, str(error)) from None
