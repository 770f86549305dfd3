"""Online changes of a group's protocol, while it has members: from classic to consumer and back
(KIP-848).

A classic group is upgraded when the first member of the consumer protocol joins, and downgraded
when the last one has left. Its generation, which is the group epoch then, and its assignments go
on.
"""

from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.group.classic_group import ClassicGroup
from lakehead.broker.coordinator.group.consumer.consumer_group import ConsumerGroup
from lakehead.broker.coordinator.group.consumer.consumer_members import (
    ClassicMetadata,
    ConsumerMember,
    MemberMetadata,
    TopicPartitions,
)
from lakehead.broker.coordinator.group.consumer_protocol import (
    CONSUMER,
    by_topic_id,
    read_assignment,
    read_subscription,
    subscription_version,
    write_assignment,
)
from lakehead.broker.coordinator.group.members import Member
from lakehead.broker.coordinator.group.topic_catalog import TopicCatalog
from lakehead.broker.coordinator.record_reader import UnknownRecord
from lakehead.broker.protocol.errors import KafkaError


def upgrade(classic: ClassicGroup, group: ConsumerGroup, now: float) -> None:
    """Let an empty consumer group take over what a classic group has.

    Raises GROUP_ID_NOT_FOUND for a group that cannot be upgraded: this is not allowed, its members
    are no consumers or too many, or what their assignor does is beyond the broker.
    """
    settings = group.settings
    if not settings.migration_policy.allows_upgrade:
        raise _refused(classic, "online upgrade is disabled")
    if classic.protocol_type != CONSUMER:
        raise _refused(classic, "the group does not use the consumer embedded protocol")
    if len(classic.members) > settings.max_size:
        raise _refused(classic, "the group size exceeds the consumer group maximum size")
    try:
        members = [_consumer(member, classic, group.catalog) for member in classic.members]
    except UnknownRecord:
        raise _refused(classic, "the embedded consumer protocol is malformed") from None
    group.take_over(classic.generation, members, now)


def is_downgrade_due(group: ConsumerGroup, size_max: int) -> bool:
    """Return true if a consumer group is to become a classic one of `size_max` members at most."""
    return (
        group.store.are_all_classic
        and group.settings.migration_policy.allows_downgrade
        and len(group.members) <= size_max
    )


def downgraded_members(group: ConsumerGroup, now: float) -> list[Member]:
    """Return the members of a consumer group, all of them classic, as a classic group has them."""
    return [_classic(member, group.catalog, now) for member in group.members.values()]


def _consumer(
    member: Member, classic: ClassicGroup, catalog: TopicCatalog
) -> tuple[str, MemberMetadata, TopicPartitions]:
    name = classic.protocol_name if classic.protocol_name is not None else member.protocols[0][0]
    subscription = read_subscription(member.metadata(name))
    assignment = read_assignment(member.assignment)
    if assignment.user_data:
        raise _refused(classic, "an unsupported custom assignor is in use")
    metadata = MemberMetadata(
        instance_id=member.instance_id,
        rack_id=subscription.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topics=subscription.topics,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMetadata(
            session_timeout_ms=member.session_timeout_ms, protocols=member.protocols
        ),
    )
    return member.member_id, metadata, by_topic_id(assignment.partitions, catalog)


def _classic(member: ConsumerMember, catalog: TopicCatalog, now: float) -> Member:
    classic = member.metadata.classic
    assert classic is not None
    version = subscription_version(classic.protocols[0][1])
    return Member(
        member_id=member.member_id,
        instance_id=member.metadata.instance_id,
        client_id=member.metadata.client_id,
        client_host=member.metadata.client_host,
        rebalance_timeout_ms=member.metadata.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        protocols=classic.protocols,
        assignment=write_assignment(member.target, catalog, version),
        session_deadline=now + classic.session_timeout_ms / 1000,
        is_new=False,
        has_synced=True,
    )


def _refused(classic: ClassicGroup, reason: str) -> KafkaError:
    return KafkaError(
        ErrorCode.group_id_not_found,
        f"Cannot upgrade classic group {classic.group_id} to consumer group because {reason}.",
    )
