"""What a connector's TOML file says."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from lakehead.connectors.runtime.dead_letters import OnError
from lakehead.connectors.runtime.settings import Name, RunSettings
from lakehead.connectors.sources.delta.settings import DeltaSettings
from lakehead.connectors.sources.files.settings import FilesSettings
from lakehead.connectors.sources.topics import TopicsSettings


class TopicSinkSettings(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="type",
    tag="topic",
):
    """The table `[sink]` with `type = "topic"`."""

    topic: Annotated[str, Meta(min_length=1)]
    """In copies of topics `{topic}` stands for the one that is read."""
    partitions: Annotated[int, Meta(ge=1)] | None = None
    """Create the topic with so many partitions if there is none."""
    keep_partitions: bool = True
    """In copies of topics: the same partition, not one by the key."""
    on_error: OnError = OnError.FAIL
    """What becomes of what cannot be a record."""
    dead_letter_topic: Name | None = None
    """TOPIC.dead-letters unless given."""
    kafka: dict[str, Any] = {}
    """In copies of topics: the cluster to write to, if it is another."""


class ConnectorSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file."""

    name: Name
    """Of the connector: its positions, its group and its transactional id have it."""
    source: FilesSettings | DeltaSettings | TopicsSettings
    sink: TopicSinkSettings
    kafka: dict[str, Any] = {}
    """Settings of librdkafka for the cluster."""
    run: RunSettings = RunSettings()
