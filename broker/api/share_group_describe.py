"""ShareGroupDescribe, key 77, version 1: share groups with their members (KIP-932)."""

from typing import Any

from lakehead.broker.api.described_groups import FoundGroup, assignment, described_groups
from lakehead.broker.coordinator.group.share.share_assignor import SIMPLE
from lakehead.broker.coordinator.group.share.share_group import ShareGroup, ShareGroupMember
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_GROUP, DESCRIBE_TOPIC

_SHOWN = DESCRIBE_TOPIC.noted("Of every topic that a member subscribes to, or has.")
API = Api(key=77, name="ShareGroupDescribe", versions=(1, 1), access=(DESCRIBE_GROUP, _SHOWN))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response for each group."""

    async def find(group_id: str) -> FoundGroup:
        group = await context.services.groups.share_group(group_id)
        return FoundGroup(
            state=group.state.value,
            epoch=group.epoch,
            target_epoch=group.target_epoch,
            assignor=SIMPLE,
            members=[_member(member, context) for member in group.members.values()],
            topics=_topics(group, context),
        )

    groups = await described_groups(request, context, _SHOWN, find)
    return entity(context.response, "ShareGroupDescribeResponse", groups=groups)


def _topics(group: ShareGroup, context: RequestContext) -> set[str]:
    """Return the topics that members subscribe to, or have."""
    names: set[str] = set()
    for member in group.members.values():
        names |= member.metadata.topics
        assigned = map(context.services.groups.topic_name, member.current.assigned)
        names |= {name for name in assigned if name is not None}
    return names


def _member(member: ShareGroupMember, context: RequestContext) -> Any:
    metadata = member.metadata
    return entity(
        context.response,
        "Member",
        member_id=member.member_id,
        rack_id=metadata.rack_id,
        member_epoch=member.current.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=sorted(metadata.topics),
        assignment=assignment(member.current.assigned, context),
    )
