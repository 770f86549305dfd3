"""AlterPartitionReassignments, key 45, versions 0-1: assign partitions to other leaders (KIP-455).

v1: whether the number of replicas may change; it always may, since only the first broker of a list
counts. Leadership moves, data does not. The response comes once the decision is in the metadata;
the move follows within moments.
"""

from typing import Any

from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.cluster.replication_control import MovePlan, plan_reassignments
from lakehead.broker.deadline import Deadline
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import ALTER_CLUSTER
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.records import Record
from lakehead.storage.metadata.state import MetadataImage

API = Api(
    key=45,
    name="AlterPartitionReassignments",
    versions=(0, 1),
    is_at_once=True,
    access=(ALTER_CLUSTER,),
)


async def handle(request: Any, context: RequestContext) -> Any:
    """Commit the possible moves in one entry; return the response, with a code for each
    partition.
    """
    requested = [
        ((topic.name, partition.partition_index), partition.replicas)
        for topic in request.topics
        for partition in topic.partitions
    ]
    planned = MovePlan({}, {})

    def plan(state: MetadataImage) -> list[Record]:
        nonlocal planned
        planned = plan_reassignments(state, requested, context.services.lifecycle.ready())
        return [*planned.records()]

    code, message = ErrorCode.none, None
    try:
        if context.may(ALTER_CLUSTER):
            async with Deadline.of(request).limit():
                await context.services.metadata.commit_with(plan)
        else:
            code = ALTER_CLUSTER.error
            planned = MovePlan({}, {place: KafkaError(code) for place, _ in requested})
    except LakeheadError as error:
        code, message = error_code(error), str(error)
    turns = Turns()
    await turns.give_way()
    return entity(
        context.response,
        "AlterPartitionReassignmentsResponse",
        error_code=code,
        error_message=message,
        responses=[await _topic(topic, planned, context, turns) for topic in request.topics],
    )


async def _topic(topic: Any, planned: MovePlan, context: RequestContext, turns: Turns) -> Any:
    await turns.step()
    partitions = []
    for partition in topic.partitions:
        await turns.step()
        error = planned.errors.get((topic.name, partition.partition_index))
        partitions.append(
            entity(
                context.response,
                "ReassignablePartitionResponse",
                partition_index=partition.partition_index,
                error_code=ErrorCode.none if error is None else error.code,
                error_message=None if error is None else error.message,
            )
        )
    return entity(
        context.response, "ReassignableTopicResponse", name=topic.name, partitions=partitions
    )
