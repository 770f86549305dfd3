"""What AlterConfigs and IncrementalAlterConfigs share: resources, validation, the commit."""

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from kio.schema.errors import ErrorCode

from broker.api.describe_configs import BROKER, TOPIC
from broker.protocol.api import RequestContext
from broker.protocol.errors import KafkaError, error_code
from broker.protocol.messages import entity
from storage.errors import LakeheadError
from storage.metadata.records import Record, TopicConfig
from storage.metadata.state import ClusterState, TopicState

DELETE = 1
"""The operation of IncrementalAlterConfigs that resets a config."""
THROTTLES = frozenset(
    {
        "follower.replication.throttled.rate",
        "leader.replication.throttled.rate",
        "replica.alter.log.dirs.io.max.bytes.per.second",
    }
)
"""What `kafka-reassign-partitions` sets on brokers while partitions move, and resets afterwards."""

Changes: TypeAlias = Callable[[Any, TopicState], dict[str, str | None]]
"""Returns what a resource of a request changes; None resets. Raises KafkaError."""


async def answer_changes(
    request: Any, context: RequestContext, response: str, changes: Changes
) -> Any:
    """Make the changes of every resource, each on its own, and answer for each."""
    responses = []
    for resource in request.resources:
        code, message = ErrorCode.none, None
        try:
            await _change(resource, request.validate_only, context, changes)
        except (LakeheadError, TimeoutError) as error:
            code, message = error_code(error), str(error)
        responses.append(
            entity(
                context.response,
                "AlterConfigsResourceResponse",
                error_code=code,
                error_message=message,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return entity(context.response, response, responses=responses)


def _is_without_effect(change: Any) -> bool:
    """Whether a change of a broker's config changes nothing, here or anywhere: no config is set
    while a broker runs, so there is nothing to reset, and reassignments copy nothing to throttle.
    """
    return change.name in THROTTLES or getattr(change, "config_operation", None) == DELETE


async def _change(
    resource: Any, validate_only: bool, context: RequestContext, changes: Changes
) -> None:
    if resource.resource_type == BROKER and all(map(_is_without_effect, resource.configs)):
        return
    if resource.resource_type != TOPIC:
        raise KafkaError(
            ErrorCode.invalid_request, "Only configs of topics can be changed while a broker runs."
        )

    def plan(state: ClusterState) -> Sequence[Record]:
        topic = state.topics.get(resource.resource_name)
        if topic is None:
            raise KafkaError(ErrorCode.unknown_topic_or_partition)
        configs = changes(resource, topic)
        if not configs:
            return []
        return [TopicConfig(topic_id=topic.topic_id, configs=configs)]

    metadata = context.node.engine.metadata
    # Planned twice: what does nothing, or is only tried out, takes no entry of the log.
    if plan(metadata.state) and not validate_only:
        await metadata.commit_with(plan)
