"""`lakehead topics`: list and describe from the metadata log, create, alter and delete over
Kafka.

Reading needs no broker: everything is in the object store. Changes go through a broker, as those of
any Kafka client do.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from lakehead.broker.cli.cluster import COMMAND_CONFIG, DEFAULT_PATH, PathOption, load_state, run
from lakehead.broker.cli.confirmation import YesOption, confirm
from lakehead.broker.cli.help_page import CommandLine
from lakehead.broker.cli.listing import JsonOption, show_fields, show_rows
from lakehead.broker.configs.topic_configs import is_topic_config
from lakehead.storage.errors import NotFound, SettingsError
from lakehead.storage.metadata.state import MetadataImage, StreamState, TopicState

app = CommandLine(help="List, describe, create, alter and delete topics.")

NameArgument = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
BootstrapOption = Annotated[
    str,
    typer.Option("--bootstrap-server", "-b", metavar="HOST:PORT", help="A broker of the cluster."),
]
ClientConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--command-config",
        metavar="FILE",
        envvar=COMMAND_CONFIG,
        help="Settings of a Kafka client (client.properties), for a listener with TLS or SASL.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A config of the topic; may be repeated."),
]
DEFAULT_BOOTSTRAP = "localhost:9092"


@app.command("list")
def list_topics(
    path: PathOption = DEFAULT_PATH,
    internal: Annotated[
        bool, typer.Option("--internal", help="Show internal topics (__consumer_offsets) too.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """List topics with their size in the object store; needs no broker.

    Records of the last seconds are in a write-ahead log and not counted yet.
    """
    state = run(load_state(path))
    rows = [
        _summary(state, topic)
        for name, topic in sorted(state.topics.items())
        if internal or not name.startswith("__")
    ]
    columns = {
        "topic": "TOPIC",
        "partitions": "PARTITIONS",
        "records": "OFFSETS",
        "bytes": "BYTES",
        "objects": "OBJECTS",
    }
    show_rows(rows, columns, as_json)


def _streams(state: MetadataImage, topic: TopicState) -> list[StreamState]:
    return [state.streams[stream_id] for stream_id in topic.partitions]


def _summary(state: MetadataImage, topic: TopicState) -> dict[str, Any]:
    streams = _streams(state, topic)
    return {
        "topic": topic.name,
        "partitions": len(streams),
        "records": sum(stream.end_offset - stream.start_offset for stream in streams),
        "bytes": sum(extent.size for stream in streams for extent in stream.extents),
        "objects": len({extent.object_key for stream in streams for extent in stream.extents}),
    }


@app.command("describe")
def describe_topic(
    name: NameArgument, path: PathOption = DEFAULT_PATH, as_json: JsonOption = False
) -> None:
    """Show a topic's settings and partitions; needs no broker.

    Offsets are those in the object store: what a broker has accepted in the last seconds is still
    in its write-ahead log.
    """
    state = run(load_state(path))
    topic = state.topics.get(name)
    if topic is None:
        raise NotFound(f"there is no topic {name!r} in this cluster; see: lakehead topics list")
    rows = [_partition(stream) for stream in _streams(state, topic)]
    if as_json:
        head = {"topic": name, "id": topic.topic_id, "configs": dict(topic.configs.items())}
        show_fields({**head, "partitions": rows}, as_json)
        return
    configs = ", ".join(f"{key}={value}" for key, value in sorted(topic.configs.items()))
    show_fields({"topic": name, "id": topic.topic_id, "configs": configs or "-"}, as_json)
    typer.echo()
    columns = {
        "partition": "PARTITION",
        "leader": "LEADER",
        "leader_epoch": "EPOCH",
        "start_offset": "START",
        "end_offset": "END",
        "objects": "OBJECTS",
        "bytes": "BYTES",
        "stream": "STREAM",
    }
    show_rows(rows, columns, as_json)


def _partition(stream: StreamState) -> dict[str, Any]:
    return {
        "partition": stream.partition,
        "leader": stream.node_id if stream.is_open else None,
        "leader_epoch": stream.epoch,
        "start_offset": stream.start_offset,
        "end_offset": stream.end_offset,
        "objects": len({extent.object_key for extent in stream.extents}),
        "bytes": sum(extent.size for extent in stream.extents),
        "stream": stream.stream_id,
    }


@app.command("create")
def create_topic(
    name: NameArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, metavar="N", help="Number of partitions.")
    ] = 1,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config", metavar="NAME=VALUE", help="The former name of --set.", hidden=True
        ),
    ] = None,
    changes: SetOption = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    command_config: ClientConfigOption = None,
) -> None:
    """Create a topic through a broker."""
    from lakehead.broker.cli.kafka_admin import KafkaAdmin

    configs = _configs([*(config or ()), *(changes or ())])
    KafkaAdmin(bootstrap, command_config).create_topic(name, partitions, configs)
    typer.echo(f"created topic {name} with {partitions} partition{'s' * (partitions > 1)}")


@app.command("alter")
def alter_topic(
    name: NameArgument,
    changes: SetOption = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset",
            metavar="NAME",
            help="Give a config of the topic its default again; may be repeated.",
        ),
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option("--partitions", min=1, metavar="N", help="Add partitions, up to this number."),
    ] = None,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    command_config: ClientConfigOption = None,
) -> None:
    """Change a topic's configs or add partitions to it, through a broker.

    Configs change all together or not at all. Partitions cannot be removed, and records with keys
    go to other partitions than before when some are added.
    """
    from lakehead.broker.cli.kafka_admin import KafkaAdmin, near_config

    for config in unset or ():
        if not is_topic_config(config):  # brokers take it for a config that has its default
            raise SettingsError(f"--unset: topics have no config {config}{near_config(config)}")
    configs: dict[str, str | None] = {**_configs(changes or ()), **dict.fromkeys(unset or ())}
    if not configs and partitions is None:
        raise SettingsError("nothing to change: give --set, --unset or --partitions")
    if both := set(_configs(changes or ())) & set(unset or ()):
        raise SettingsError(f"--set and --unset both name {', '.join(sorted(both))}")
    admin = KafkaAdmin(bootstrap, command_config)
    if configs:
        admin.alter_configs(name, configs)
        typer.echo(f"altered {', '.join(sorted(configs))} of topic {name}")
    if partitions is not None:
        admin.create_partitions(name, partitions)
        typer.echo(f"topic {name} has {partitions} partition{'s' * (partitions > 1)}")


def _configs(given: Sequence[str]) -> dict[str, str]:
    return dict(map(_pair, given))


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise SettingsError(f"{text!r} is not a config: write NAME=VALUE")
    return name, value


@app.command("delete")
def delete_topic(
    name: NameArgument,
    yes: YesOption = False,
    bootstrap: BootstrapOption = DEFAULT_BOOTSTRAP,
    command_config: ClientConfigOption = None,
) -> None:
    """Delete a topic and its records through a broker."""
    from lakehead.broker.cli.kafka_admin import KafkaAdmin

    confirm(f"Delete topic {name} and its records?", yes=yes)
    KafkaAdmin(bootstrap, command_config).delete_topic(name)
    typer.echo(f"deleted topic {name}")
