"""ListPartitionReassignments, key 46, version 0: the partitions whose leadership is on its way
(KIP-455).

A partition that moves is listed with the broker that is to lead it as being added, and the one that
still does as being removed.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.cluster.metadata_image import leader_of, replicas_of
from lakehead.broker.cluster.replication_control import is_moving
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_CLUSTER
from lakehead.storage.metadata.state import MetadataImage, TopicState

API = Api(key=46, name="ListPartitionReassignments", versions=(0, 0), access=(DESCRIBE_CLUSTER,))


async def handle(request: Any, context: RequestContext) -> Any:
    """Return the response for the requested partitions; null requests all."""
    state = context.services.state
    if not context.may(DESCRIBE_CLUSTER):
        return _denied(request, context)
    if request.topics is None:
        requested = {name: range(len(topic.partitions)) for name, topic in state.topics.items()}
    else:
        requested = {topic.name: topic.partition_indexes for topic in request.topics}
    topics, turns = [], Turns()
    for name, indexes in sorted(requested.items()):
        await turns.step()
        topic = state.topics.get(name)
        partitions = [] if topic is None else await _moving(topic, indexes, state, context, turns)
        if partitions:
            topics.append(
                entity(
                    context.response,
                    "OngoingTopicReassignment",
                    name=name,
                    partitions=partitions,
                )
            )
    return entity(
        context.response,
        "ListPartitionReassignmentsResponse",
        error_code=ErrorCode.none,
        error_message=None,
        topics=topics,
    )


def _denied(request: Any, context: RequestContext) -> Any:
    """As Kafka does, return the partitions of the request with nothing about them."""
    topics = [
        entity(
            context.response,
            "OngoingTopicReassignment",
            name=topic.name,
            partitions=[
                entity(
                    context.response,
                    "OngoingPartitionReassignment",
                    partition_index=index,
                    replicas=(),
                    adding_replicas=(),
                    removing_replicas=(),
                )
                for index in topic.partition_indexes
            ],
        )
        for topic in request.topics or ()
    ]
    return entity(
        context.response,
        "ListPartitionReassignmentsResponse",
        error_code=DESCRIBE_CLUSTER.error,
        error_message=None,
        topics=topics,
    )


async def _moving(
    topic: TopicState, indexes: Any, state: MetadataImage, context: RequestContext, turns: Turns
) -> list[Any]:
    found = []
    for index in indexes:
        await turns.step()
        if not 0 <= index < len(topic.partitions):
            continue
        stream = state.streams[topic.partitions[index]]
        if not is_moving(state, stream):
            continue
        leader = leader_of(state, stream)
        found.append(
            entity(
                context.response,
                "OngoingPartitionReassignment",
                partition_index=index,
                replicas=replicas_of(state, stream).every,
                adding_replicas=(stream.assigned,),
                removing_replicas=() if leader is None else (leader.node.node_id,),
            )
        )
    return found
