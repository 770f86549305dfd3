"""ListPartitionReassignments, key 46, version 0: the partitions whose leadership is on its way
(KIP-455).

A partition that moves is listed with the broker that is to lead it as being added, and the one that
still does as being removed.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.cluster.metadata_image import leader_of, replicas_of
from lakehead.broker.cluster.replication_control import is_moving
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.storage.metadata.state import MetadataImage, TopicState

API = Api(key=46, name="ListPartitionReassignments", versions=(0, 0))


def handle(request: Any, context: RequestContext) -> Any:
    """Return the response for the requested partitions; null requests all."""
    state = context.services.state
    if request.topics is None:
        asked = {name: range(len(topic.partitions)) for name, topic in state.topics.items()}
    else:
        asked = {topic.name: topic.partition_indexes for topic in request.topics}
    topics = []
    for name, indexes in sorted(asked.items()):
        topic = state.topics.get(name)
        partitions = [] if topic is None else _moving(topic, indexes, state, context)
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


def _moving(
    topic: TopicState, indexes: Any, state: MetadataImage, context: RequestContext
) -> list[Any]:
    found = []
    for index in indexes:
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
