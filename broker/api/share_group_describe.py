"""ShareGroupDescribe, key 77, version 1: share groups with their members (KIP-932)."""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.authorized_operations import NOT_REQUESTED, on_group
from lakehead.broker.api.described_groups import assignment, check_topics, unknown
from lakehead.broker.api.turns import Turns
from lakehead.broker.coordinator.group.share.share_assignor import SIMPLE
from lakehead.broker.coordinator.group.share.share_group import ShareGroup, ShareGroupMember
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_GROUP, DESCRIBE_TOPIC
from lakehead.storage.errors import LakeheadError

_SHOWN = DESCRIBE_TOPIC.noted("Of every topic that a member subscribes to, or has.")
API = Api(key=77, name="ShareGroupDescribe", versions=(1, 1), access=(DESCRIBE_GROUP, _SHOWN))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response for each group."""
    groups, turns = [], Turns()
    for group_id in dict.fromkeys(request.group_ids):
        await turns.step()
        try:
            context.check(DESCRIBE_GROUP, group_id)
            if not group_id:
                raise KafkaError(ErrorCode.invalid_group_id)
            group = await context.services.groups.share_group(group_id)
            check_topics(_SHOWN, _topics(group, context), context)
        except (LakeheadError, TimeoutError) as error:
            groups.append(unknown(group_id, error, context))
            continue
        await turns.step(len(group.members))
        operations = NOT_REQUESTED
        if request.include_authorized_operations:
            operations = on_group(group_id, context)
        groups.append(
            entity(
                context.response,
                "DescribedGroup",
                error_code=ErrorCode.none,
                group_id=group_id,
                group_state=group.state.value,
                group_epoch=group.epoch,
                assignment_epoch=group.target_epoch,
                assignor_name=SIMPLE,
                members=[_member(member, context) for member in group.members.values()],
                authorized_operations=operations,
            )
        )
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
