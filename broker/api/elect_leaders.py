"""ElectLeaders, key 43, versions 0-2: make preferred brokers lead again (KIP-183).

v1: unclean elections (KIP-460): any broker, for a partition without leader. Storage is shared, so
an unclean election loses only the data that a dead broker's log alone holds, and is refused if a
live broker reaches that log. v2: flexible. Null requests every partition that needs an election.
The response comes when the new leaders lead, or when the request's time is over.
"""

from typing import Any

import structlog
from kio.schema.errors import ErrorCode

from lakehead.broker.api.turns import Turns
from lakehead.broker.cluster.metadata_image import TopicPartition
from lakehead.broker.cluster.replication_control import MovePlan, plan_elections
from lakehead.broker.deadline import Deadline
from lakehead.broker.protocol.api import Api
from lakehead.broker.protocol.errors import KafkaError, error_code
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import ALTER_CLUSTER
from lakehead.storage.errors import LakeheadError
from lakehead.storage.metadata.records import Record
from lakehead.storage.metadata.state import MetadataImage

API = Api(key=43, name="ElectLeaders", versions=(0, 2), is_at_once=True, access=(ALTER_CLUSTER,))

_PREFERRED, _UNCLEAN = 0, 1
_log = structlog.get_logger("broker.elections")


async def handle(request: Any, context: RequestContext) -> Any:
    """Commit the possible elections in one entry, and wait; return the response for each
    partition.
    """
    election = getattr(request, "election_type", _PREFERRED)
    planned, code = MovePlan({}, {}), ErrorCode.none
    if not context.may(ALTER_CLUSTER):
        code = ALTER_CLUSTER.error
        if request.topic_partitions is not None:
            denied = KafkaError(code)
            places = _places(request, context.services.metadata.state)
            planned = MovePlan({}, dict.fromkeys(places, denied))
    elif election not in {_PREFERRED, _UNCLEAN}:
        code = ErrorCode.invalid_request
        if request.topic_partitions is not None:
            unknown = KafkaError(code, f"Unknown election type {election}.")
            places = _places(request, context.services.metadata.state)
            planned = MovePlan({}, dict.fromkeys(places, unknown))
    else:
        try:
            planned = await _elect(request, context, is_unclean=election == _UNCLEAN)
        except LakeheadError as error:
            code = error_code(error)
    results: dict[str, list[Any]] = {}
    turns = Turns()
    await turns.give_way()
    for place in (*planned.moves, *planned.errors):
        await turns.step()
        refusal = planned.errors.get(place)
        results.setdefault(place[0], []).append(
            entity(
                context.response,
                "PartitionResult",
                partition_id=place[1],
                error_code=ErrorCode.none if refusal is None else refusal.code,
                error_message=None if refusal is None else refusal.message,
            )
        )
    return entity(
        context.response,
        "ElectLeadersResponse",
        error_code=code,
        replica_election_results=[
            entity(
                context.response,
                "ReplicaElectionResult",
                topic=topic,
                partition_result=sorted(partitions, key=lambda result: result.partition_id),
            )
            for topic, partitions in sorted(results.items())
        ],
    )


async def _elect(request: Any, context: RequestContext, *, is_unclean: bool) -> MovePlan:
    services = context.services
    planned = MovePlan({}, {})

    def plan(state: MetadataImage) -> list[Record]:
        nonlocal planned
        places = _places(request, state)
        planned = plan_elections(state, places, services.lifecycle.ready(), is_unclean=is_unclean)
        return [*planned.records()]

    deadline = Deadline.of(request)
    async with deadline.limit():
        await context.services.metadata.commit_with(plan)
    _note_losses(planned)
    if request.topic_partitions is None:
        for place, error in list(planned.errors.items()):
            if error.code is ErrorCode.election_not_needed:
                del planned.errors[place]
    timeout_s = min(request.timeout.total_seconds(), deadline.left_s)
    late = await services.replica_manager.wait_led(
        (move.stream_id for move in planned.moves.values()), timeout_s
    )
    for place, move in list(planned.moves.items()):
        if move.stream_id in late:
            del planned.moves[place]
            message = "The partition is not led yet; the election goes on."
            planned.errors[place] = KafkaError(ErrorCode.request_timed_out, message)
    return planned


def _note_losses(planned: MovePlan) -> None:
    for (topic, index), move in planned.moves.items():
        if move.loss is not None:
            _log.warning(
                "leader_elected_uncleanly",
                topic=topic,
                partition=index,
                to_node_id=move.node_id,
                end_offset=move.loss.end_offset,
                lost_node_id=move.loss.node_id,
                lost="what was acknowledged from the end offset on",
            )


def _places(request: Any, state: MetadataImage) -> list[TopicPartition]:
    if request.topic_partitions is None:
        return [
            (name, index)
            for name, topic in state.topics.items()
            for index in range(len(topic.partitions))
        ]
    return [
        (requested.topic, index)
        for requested in request.topic_partitions
        for index in requested.partitions
    ]
