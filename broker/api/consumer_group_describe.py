"""ConsumerGroupDescribe, key 69, versions 0-1: consumer groups with their members (KIP-848).

v1: whether a member speaks the classic or the consumer protocol.
"""

from typing import Any

from lakehead.broker.api.described_groups import FoundGroup, assignment, described_groups
from lakehead.broker.coordinator.group.consumer.consumer_members import ConsumerMember
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_GROUP, DESCRIBE_TOPIC

_SHOWN = DESCRIBE_TOPIC.noted("Of every topic that a member subscribes to by name, or has.")
API = Api(key=69, name="ConsumerGroupDescribe", versions=(0, 1), access=(DESCRIBE_GROUP, _SHOWN))

_CLASSIC, _CONSUMER = 0, 1


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response for each group."""

    async def find(group_id: str) -> FoundGroup:
        group = await context.services.groups.describe_consumer_group(group_id)
        members = [_member(member, context) for member in group.members]
        return FoundGroup(
            state=group.state.value,
            epoch=group.epoch,
            target_epoch=group.target_epoch,
            assignor=group.assignor,
            members=members,
            topics=_topics(members),
        )

    groups = await described_groups(request, context, _SHOWN, find)
    return entity(context.response, "ConsumerGroupDescribeResponse", groups=groups)


def _topics(members: list[Any]) -> set[str]:
    """Return the topics that members subscribe to by name, or have."""
    return {
        name
        for member in members
        for name in (
            *member.subscribed_topic_names,
            *(topic.topic_name for topic in member.assignment.topic_partitions),
            *(topic.topic_name for topic in member.target_assignment.topic_partitions),
        )
    }


def _member(member: ConsumerMember, context: RequestContext) -> Any:
    metadata = member.metadata
    return entity(
        context.response,
        "Member",
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.current.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=sorted(metadata.topics),
        subscribed_topic_regex=metadata.regex,
        assignment=assignment(member.current.assigned, context),
        target_assignment=assignment(member.target, context),
        member_type=_CLASSIC if member.is_classic else _CONSUMER,
    )
