"""Shared by AlterConfigs and IncrementalAlterConfigs: resources, validation, the commit.

Each resource is changed on its own: all of its changes, or none. Topics, groups and client metrics
have configs; brokers have those that can be set while they run, for one broker or (empty name) for
all; so have their loggers.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from immutables import Map
from kio.schema.errors import ErrorCode

from lakehead.broker.api.describe_log_dirs import log_dir
from lakehead.broker.api.logger_levels import change_levels
from lakehead.broker.api.turns import change_each
from lakehead.broker.cluster.cordons import CORDONED_LOG_DIRS, check_cordons
from lakehead.broker.configs.client_metrics_configs import (
    known_client_metrics_config,
    parse_client_metrics_configs,
)
from lakehead.broker.configs.definition import ConfigDefinition, Effect
from lakehead.broker.configs.entries import BROKER_CONFIGS, listener_config
from lakehead.broker.configs.group_configs import known_group_config, parse_group_configs
from lakehead.broker.configs.table_places import TablePlaces
from lakehead.broker.configs.topic_configs import known_topic_config, parse_topic_configs
from lakehead.broker.deadline import Deadline
from lakehead.broker.network.connection_limits import OVERRIDES, PER_ADDRESS, check_limits
from lakehead.broker.partition.partition import is_valid_name
from lakehead.broker.protocol.errors import KafkaError, error_code, error_message
from lakehead.broker.protocol.messages import entity
from lakehead.broker.request_context import RequestContext
from lakehead.broker.security.access import (
    ALTER_CONFIGS_OF_CLUSTER,
    ALTER_CONFIGS_OF_GROUP,
    ALTER_CONFIGS_OF_TOPIC,
)
from lakehead.broker.setting_sources import split_override
from lakehead.broker.settings import OVERRIDE_PREFIX, Settings
from lakehead.lake.declaration.table_declaration import declared_paths
from lakehead.storage.errors import LakeheadError, SettingsError
from lakehead.storage.maintenance.configs import ALL_BROKERS
from lakehead.storage.metadata.records import (
    BrokerConfig,
    ClientMetricsConfig,
    GroupConfig,
    Record,
    TableProgress,
    TakeTable,
    TopicConfig,
)
from lakehead.storage.metadata.state import MetadataImage

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
RESOURCE_TYPES = frozenset({TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP})


_OF_CLUSTER = ALTER_CONFIGS_OF_CLUSTER.noted("Configs of brokers, loggers and client metrics.")
ACCESS = (_OF_CLUSTER, ALTER_CONFIGS_OF_TOPIC, ALTER_CONFIGS_OF_GROUP)
"""The checks of both APIs."""
_DELETE = 1
_LIMITS_OF_LISTENERS = frozenset(
    {"max.connections", "max.connection.creation.rate", "num.network.threads"}
)
"""Configs that may be set for a listener of all brokers at once."""
_RESOURCE_STEPS = 4
"""Work on one resource, counted in elements of a request."""

Configs: TypeAlias = Mapping[str, str]
Changes: TypeAlias = dict[str, str | None]
"""New values by name; None resets."""
Definitions: TypeAlias = Callable[[str], ConfigDefinition]
"""Returns the config of a name. Raises KafkaError when the resource has none of it."""
ChangesOf: TypeAlias = Callable[[Any, Configs, Definitions], Changes]
"""Returns what a resource of a request, with the configs that are set, changes. Raises KafkaError.
"""


def refused(message: str) -> KafkaError:
    """Return the error of a request that makes no sense."""
    return KafkaError(ErrorCode.invalid_request, message)


async def handle_changes(
    request: Any, context: RequestContext, response: str, changes_of: ChangesOf
) -> Any:
    """Change the configs of every resource, each on its own; return the response for each."""
    named = Counter(
        (requested.resource_type, requested.resource_name) for requested in request.resources
    )
    deadline = Deadline()

    async def change(resource: Any) -> Any:
        code, message = ErrorCode.none, None
        try:
            if named[resource.resource_type, resource.resource_name] > 1:
                raise refused("Each resource must appear at most once.")
            _check_names(resource)
            _check_nulls(resource)
            _check_access(resource, context)
            await _change(resource, request.validate_only, context, changes_of, deadline)
        except (LakeheadError, TimeoutError) as error:
            code, message = error_code(error), error_message(error)
        return entity(
            context.response,
            "AlterConfigsResourceResponse",
            error_code=code,
            error_message=message,
            resource_type=resource.resource_type,
            resource_name=resource.resource_name,
        )

    responses = await change_each(
        request.resources, change, lambda resource: _RESOURCE_STEPS + len(resource.configs)
    )
    return entity(context.response, response, responses=responses)


def _check_names(resource: Any) -> None:
    names = [change.name for change in resource.configs]
    if len(set(names)) < len(names):
        raise refused("Error due to duplicate config keys")


def _check_nulls(resource: Any) -> None:
    for change in resource.configs:
        if change.value is None and getattr(change, "config_operation", None) != _DELETE:
            raise refused(f"Null value not supported for : {change.name}")


def _check_access(resource: Any, context: RequestContext) -> None:
    kind, name = resource.resource_type, resource.resource_name
    if kind == BROKER and name:
        _node_id(name, context.services.state)
    if kind == TOPIC:
        context.check(ALTER_CONFIGS_OF_TOPIC, name)
    elif kind == GROUP:
        context.check(ALTER_CONFIGS_OF_GROUP, name)
    elif kind in RESOURCE_TYPES:
        context.check(_OF_CLUSTER)


async def _change(
    resource: Any,
    validate_only: bool,
    context: RequestContext,
    changes_of: ChangesOf,
    deadline: Deadline,
) -> None:
    if resource.resource_type == BROKER_LOGGER:  # no metadata: they are this process's
        change_levels(resource, context.services.node_id, only_check=validate_only)
        return
    kind, services = resource.resource_type, context.services
    if kind != GROUP and kind not in _PLANNERS:
        raise refused(f"Unknown resource type {kind}")

    def plan(state: MetadataImage) -> Sequence[Record]:
        if kind == GROUP:
            return _plan_group(resource, state, changes_of, services.settings)
        records = _PLANNERS[kind](resource, state, changes_of, services.table_places)
        check_cordons(records, log_dir(context))
        return records

    metadata = context.services.metadata
    # Planned twice: what does nothing, or is only tried out, takes no entry of the log.
    if plan(metadata.state) and not validate_only:
        async with deadline.limit():
            await metadata.commit_with(plan)


def _plan_topic(
    resource: Any, state: MetadataImage, changes_of: ChangesOf, places: TablePlaces
) -> Sequence[Record]:
    # Faults are reported in Kafka's order: an unknown topic comes last.
    name = resource.resource_name
    topic = state.topics.get(name)
    present: Configs = Map() if topic is None else topic.configs
    changes = changes_of(resource, present, known_topic_config)
    if not name:
        raise refused("Default topic resources are not allowed.")
    if topic is None and not is_valid_name(name):
        raise KafkaError(ErrorCode.invalid_topic_exception, f"Topic name is invalid: '{name}'")
    changes = parse_topic_configs(changes, present)
    if topic is None:
        raise KafkaError(
            ErrorCode.unknown_topic_or_partition, f"The topic '{name}' does not exist."
        )
    places.check(name, changes, present, state)
    if not changes:
        return []
    return [
        TopicConfig(topic_id=topic.topic_id, configs=changes),
        *_progress_taken_back(topic.topic_id, changes, present, state),
    ]


def _progress_taken_back(
    topic_id: str, changes: Changes, present: Configs, state: MetadataImage
) -> Sequence[Record]:
    """A table that is declared at another place holds nothing yet, so that retention waits for it:
    the lease of the one before ends, which it goes on with under the next term.
    """
    held = state.tables.get(topic_id)
    merged = {**present, **changes}
    given = {name: value for name, value in merged.items() if value is not None}
    before, after = declared_paths("", present).items(), declared_paths("", given).items()
    if held is None or not any(held.offsets) or after <= before:
        return []
    holder, term = "broker: the table was declared at another place", held.term + 1
    return [
        TakeTable(topic_id=topic_id, holder=holder, term=term, until_ms=1),
        TableProgress(topic_id=topic_id, term=term, offsets=()),
        TakeTable(topic_id=topic_id, holder=holder, term=term + 1, until_ms=0),
    ]


def _plan_broker(
    resource: Any, state: MetadataImage, changes_of: ChangesOf, _places: TablePlaces
) -> Sequence[Record]:
    node_id = _node_id(resource.resource_name, state)
    present = state.broker_configs.get(node_id, Map())
    changes = changes_of(resource, present, _known_broker_config)
    for name, value in changes.items():
        if value is not None:
            changes[name] = _parsed_broker_config(name, value)
    if node_id == ALL_BROKERS:
        _check_cluster_default(changes)
    if changes.keys() & {OVERRIDES, PER_ADDRESS}:
        all_brokers: Configs = state.broker_configs.get(ALL_BROKERS, Map())
        own = {**present, **changes}
        given = {name: value for name, value in own.items() if value is not None}
        _check_connections(given if node_id == ALL_BROKERS else {**all_brokers, **given})
    changes = {name: value for name, value in changes.items() if value != present.get(name)}
    return [BrokerConfig(node_id=node_id, configs=changes)] if changes else []


def _check_connections(configs: Configs) -> None:
    try:
        check_limits(int(configs.get(PER_ADDRESS, "1")), configs.get(OVERRIDES, ""))
    except SettingsError as error:
        raise refused(str(error)) from None


def _node_id(name: str, state: MetadataImage) -> int:
    if name == "":
        return ALL_BROKERS
    try:
        node_id = int(name)
    except ValueError:
        raise refused(f"Node id must be an integer, but it is: {name}") from None
    if node_id not in state.nodes:
        raise refused(f"Unexpected broker id {name}: the broker does not exist.")
    return node_id


def _known_broker_config(name: str) -> ConfigDefinition:
    config = BROKER_CONFIGS.get(name)
    if config is None and name.startswith(OVERRIDE_PREFIX):
        config = listener_config(name)
    if config is None:
        raise refused(f"Unknown broker config name: {name}")
    return config


def _parsed_broker_config(name: str, value: str) -> str:
    config = _known_broker_config(name)
    if config.effect is Effect.REFUSED:
        raise refused(f"{name} cannot be set: {config.note}")
    if not config.is_dynamic:
        raise refused(f"Cannot update these configs dynamically: [{name}]")
    return config.parse(value, ErrorCode.invalid_request)


def _check_cluster_default(changes: Changes) -> None:
    """Refuse values for all brokers that only single ones can have."""
    names = sorted(
        name for name, value in changes.items() if value is not None and _is_per_broker(name)
    )
    if names:
        raise refused(
            "Cannot update these configs at default cluster level, broker id must be specified: "
            f"[{', '.join(names)}]"
        )


def _is_per_broker(name: str) -> bool:
    if name.startswith(OVERRIDE_PREFIX):
        _, setting = split_override(name)
        return setting not in _LIMITS_OF_LISTENERS
    return name == CORDONED_LOG_DIRS


def _plan_client_metrics(
    resource: Any, state: MetadataImage, changes_of: ChangesOf, _places: TablePlaces
) -> Sequence[Record]:
    name = resource.resource_name
    if not name:
        raise refused("Subscription name can't be empty")
    present = state.client_metrics_configs.get(name, Map())
    changes = parse_client_metrics_configs(
        changes_of(resource, present, known_client_metrics_config)
    )
    changes = {one: value for one, value in changes.items() if value != present.get(one)}
    return [ClientMetricsConfig(subscription=name, configs=changes)] if changes else []


def _plan_group(
    resource: Any, state: MetadataImage, changes_of: ChangesOf, settings: Settings
) -> Sequence[Record]:
    group = resource.resource_name
    if not group:
        raise refused("Default group resources are not allowed.")
    present: Configs = state.group_configs.get(group, Map())
    changes = changes_of(resource, present, known_group_config)
    changes = parse_group_configs(changes, present, settings)
    return [GroupConfig(group=group, configs=changes)] if changes else []


_PLANNERS: Mapping[
    int, Callable[[Any, MetadataImage, ChangesOf, TablePlaces], Sequence[Record]]
] = {
    TOPIC: _plan_topic,
    BROKER: _plan_broker,
    CLIENT_METRICS: _plan_client_metrics,
}
