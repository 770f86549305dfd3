"""Checks of requests for a new topic, or for more partitions. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from lakehead.broker.configs.table_places import TablePlaces
from lakehead.broker.configs.topic_configs import parse_topic_configs
from lakehead.broker.partition.partition import is_valid_name
from lakehead.broker.protocol.errors import KafkaError
from lakehead.broker.settings import Settings
from lakehead.storage.metadata.state import (
    INTERNAL_TOPICS,
    MetadataImage,
    may_collide,
    unified_name,
)

METADATA_TOPIC = "__cluster_metadata"
"""The name of Kafka's metadata log; a topic of this name would only confuse."""
DEFAULT = -1
REPLICAS_MAX = 3
"""Replication factors up to this are taken even with fewer brokers."""
PARTITIONS_MAX = 10_000
"""Partitions that one request may make."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRequest:
    """A topic as requested; -1 stands for the default. `assignments`: partitions with their
    brokers.
    """

    name: str
    partitions: int
    replicas: int
    assignments: Sequence[tuple[int, tuple[int, ...]]]
    configs: Mapping[str, str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopic:
    """A topic as it is to be made."""

    name: str
    partitions: int
    replicas: list[tuple[int, ...]]
    """The nodes of each partition, by preference; none: as the cluster likes."""
    configs: dict[str, str]


def check_new_topic(
    request: TopicRequest, state: MetadataImage, settings: Settings, places: TablePlaces
) -> NewTopic:
    """Return the requested topic. Raises KafkaError with Kafka's code for the first fault in
    Kafka's order: the name, the configs, the numbers.
    """
    _check_name(request.name, state)
    configs = {}
    for name, value in request.configs.items():
        if value is None:
            raise KafkaError(
                ErrorCode.invalid_config, f"Null value not supported for topic configs: {name}"
            )
        configs[name] = value
    configs = {
        name: value for name, value in parse_topic_configs(configs).items() if value is not None
    }
    places.check(request.name, configs, {}, state)
    if request.assignments:
        partitions = _check_assignments(request, state)
    else:
        partitions = _check_counts(request, state, settings)
    replicas = [brokers for _, brokers in sorted(request.assignments)]
    return NewTopic(name=request.name, partitions=partitions, replicas=replicas, configs=configs)


def are_too_many(counts: Iterable[int]) -> bool:
    """Return true if the topics of one request get more new partitions than a request may make, as
    Kafka counts. A topic that is too large alone is refused alone.
    """
    return sum(count for count in counts if 0 < count <= PARTITIONS_MAX) > PARTITIONS_MAX


def too_many_partitions() -> KafkaError:
    """Return the error of each topic of such a request."""
    return KafkaError(
        ErrorCode.policy_violation,
        f"Excessively large number of partitions per request; {PARTITIONS_MAX} may be.",
    )


def check_more_partitions(
    name: str, count: int, assignments: list[tuple[int, ...]] | None, state: MetadataImage
) -> None:
    """Check a request to give a topic `count` partitions. Raises KafkaError."""
    topic = state.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.unknown_topic_or_partition)
    if name in INTERNAL_TOPICS:
        raise KafkaError(
            ErrorCode.invalid_request,
            f"{name} keeps its number of partitions: groups and transactional ids are found by it.",
        )
    present = len(topic.partitions)
    if count <= present:
        raise KafkaError(
            ErrorCode.invalid_partitions,
            f"The topic already has {present} partition(s); {count} were requested.",
        )
    _check_partition_count(count - present)
    if assignments is None:
        return
    if len(assignments) != count - present:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"{count - present} partition(s) are added, {len(assignments)} assigned.",
        )
    for brokers in assignments:
        _check_brokers(brokers, state)


def _check_name(name: str, state: MetadataImage) -> None:
    if not is_valid_name(name):
        raise KafkaError(
            ErrorCode.invalid_topic_exception,
            "A topic's name is 1 to 249 letters, digits, '.', '_' and '-', not '.' nor '..'.",
        )
    if name == METADATA_TOPIC:
        raise KafkaError(
            ErrorCode.invalid_request, f"Creation of internal topic {name} is prohibited."
        )
    if name in state.topics:
        raise KafkaError(ErrorCode.topic_already_exists, f"Topic '{name}' already exists.")
    check_collision(name, state)


def check_collision(name: str, state: MetadataImage) -> None:
    """Raise INVALID_TOPIC_EXCEPTION for a name that differs from a topic's only in '.' and '_':
    names of metrics take both for the same.
    """
    if not may_collide(name):
        return
    others = state.unified_names.get(unified_name(name), frozenset()) - {name}
    if others:
        raise KafkaError(
            ErrorCode.invalid_topic_exception,
            f"Topic '{name}' collides with existing topic: {min(others)}",
        )


def _check_counts(request: TopicRequest, state: MetadataImage, settings: Settings) -> int:
    partitions, replicas = request.partitions, request.replicas
    brokers = len(state.live_node_ids)
    if replicas != DEFAULT and replicas < 1:
        raise KafkaError(
            ErrorCode.invalid_replication_factor, "Replication factor must be larger than 0."
        )
    if partitions == DEFAULT:
        partitions = settings.num_partitions
    if partitions < 1:
        raise KafkaError(
            ErrorCode.invalid_partitions, "Number of partitions must be larger than 0."
        )
    _check_partition_count(partitions)
    if replicas > max(REPLICAS_MAX, brokers):
        raise KafkaError(
            ErrorCode.invalid_replication_factor,
            f"Replication factor {replicas} is above {max(REPLICAS_MAX, brokers)}.",
        )
    return partitions


def _check_partition_count(count: int) -> None:
    if count > PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.policy_violation, f"At most {PARTITIONS_MAX} partitions at a time."
        )


def _check_assignments(request: TopicRequest, state: MetadataImage) -> int:
    if request.partitions != DEFAULT or request.replicas != DEFAULT:
        raise KafkaError(
            ErrorCode.invalid_request,
            "With a manual assignment, partitions and replication factor must be -1.",
        )
    if sorted(index for index, _ in request.assignments) != list(range(len(request.assignments))):
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            "A manual assignment must be of partitions 0 to n - 1.",
        )
    _check_partition_count(len(request.assignments))
    for _, brokers in request.assignments:
        _check_brokers(brokers, state)
    if len({len(brokers) for _, brokers in request.assignments}) > 1:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            "All partitions must have the same number of replicas.",
        )
    return len(request.assignments)


def _check_brokers(brokers: tuple[int, ...], state: MetadataImage) -> None:
    if not brokers or len(set(brokers)) != len(brokers):
        raise KafkaError(
            ErrorCode.invalid_replica_assignment,
            f"Replica list {list(brokers)} is empty or has duplicates.",
        )
    unknown = [broker for broker in brokers if broker not in state.nodes]
    if unknown:
        raise KafkaError(
            ErrorCode.invalid_replica_assignment, f"No broker has the id {unknown[0]}."
        )
