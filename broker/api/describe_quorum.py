"""DescribeQuorum, key 55, versions 0-2: the state of the metadata log (KIP-595, KIP-836).

v1: times of the replicas. v2: error messages, directories and endpoints (KIP-853).

There is no quorum here: metadata is a log in the object store, where the node that creates the next
entry decides it. The response describes that log: its leader is the controller, in the term of its
lease; its offsets are numbers of entries; its voters are the nodes that may write to it, each with
the entries that this node has read, as they all read the same log.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.topic_rules import METADATA_TOPIC
from lakehead.broker.cluster.metadata_image import controller_id
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import DESCRIBE_CLUSTER

API = Api(
    key=55, name="DescribeQuorum", versions=(0, 2), is_at_once=True, access=(DESCRIBE_CLUSTER,)
)


def handle(request: Any, context: RequestContext) -> Any:
    """Return the response from the metadata. As in Kafka, one wrong partition fails the whole
    request.
    """
    if not context.may(DESCRIBE_CLUSTER):
        return entity(
            context.response,
            "DescribeQuorumResponse",
            error_code=DESCRIBE_CLUSTER.error,
            error_message=None,
            topics=[],
            nodes=[],
        )
    requested = [(t.topic_name, p.partition_index) for t in request.topics for p in t.partitions]
    is_known = requested == [(METADATA_TOPIC, 0)]
    topics = [
        entity(
            context.response,
            "TopicData",
            topic_name=topic.topic_name,
            partitions=[
                _quorum(context) if is_known else _unknown(partition.partition_index, context)
                for partition in topic.partitions
            ],
        )
        for topic in request.topics
    ]
    nodes = [] if not is_known or context.version < 2 else _nodes(context)
    return entity(
        context.response,
        "DescribeQuorumResponse",
        error_code=ErrorCode.none,
        error_message="",
        topics=topics,
        nodes=nodes,
    )


def _quorum(context: RequestContext) -> Any:
    services, state = context.services, context.services.state
    leader = controller_id(state, services.node_id)
    now_ms = services.clock.now_ms()
    voters = [
        entity(
            context.response,
            "ReplicaState",
            replica_id=node_id,
            replica_directory_id=None,
            log_end_offset=state.next_entry,
            last_fetch_timestamp=now_ms if node_id == services.node_id else -1,
            last_caught_up_timestamp=now_ms if node_id == services.node_id else -1,
        )
        for node_id, known in sorted(state.nodes.items())
        if not known.is_fenced
    ]
    return entity(
        context.response,
        "PartitionData",
        partition_index=0,
        error_code=ErrorCode.none,
        error_message="",
        leader_id=leader,
        leader_epoch=max(state.controller.term, 0),
        high_watermark=state.next_entry,
        current_voters=voters,
        observers=[],
    )


def _unknown(index: int, context: RequestContext) -> Any:
    return entity(
        context.response,
        "PartitionData",
        partition_index=index,
        error_code=ErrorCode.unknown_topic_or_partition,
        error_message="This server does not host this topic-partition.",
        leader_id=0,
        leader_epoch=0,
        high_watermark=0,
        current_voters=[],
        observers=[],
    )


def _nodes(context: RequestContext) -> list[Any]:
    return [
        entity(
            context.response,
            "Node",
            node_id=node_id,
            listeners=[
                entity(
                    context.response,
                    "Listener",
                    name=context.listener,
                    **address._asdict(),
                )
            ],
        )
        for node_id, known in sorted(context.services.state.nodes.items())
        if not known.is_fenced and (address := context.address_of(known)) is not None
    ]
