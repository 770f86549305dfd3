"""`lakehead import`: topics of an Apache Kafka cluster, with offsets and groups' positions."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lakehead.broker.cli.cluster import (
    COMMAND_CONFIG,
    DEFAULT_PATH,
    PathOption,
    open_at,
    place_uri,
    read_state,
    run,
    store_uri,
)
from lakehead.broker.cli.listing import JsonOption, show_rows
from lakehead.broker.observability.event_log import configure_logs
from lakehead.storage.errors import SettingsError
from lakehead.storage.format.record_batch import CODECS
from lakehead.storage.jobs.job import DamageFound

if TYPE_CHECKING:
    from lakehead.broker.cli.migration.source_cluster import SourceCluster


def import_topics(
    source: Annotated[
        str, typer.Argument(metavar="HOST:PORT", help="A broker of the cluster to import.")
    ],
    topic: Annotated[
        list[str] | None,
        typer.Option("--topic", metavar="TOPIC", help="This topic only; not all. May be repeated."),
    ] = None,
    path: PathOption = DEFAULT_PATH,
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            metavar="FILE",
            envvar=COMMAND_CONFIG,
            help="Settings of a Kafka client (client.properties), for a source with TLS or SASL.",
        ),
    ] = None,
    compression: Annotated[
        str, typer.Option("--compression", metavar="CODEC", help="Codec of the batches.")
    ] = "zstd",
    offsets_partitions: Annotated[
        int,
        typer.Option(
            "--offsets-partitions",
            min=1,
            metavar="N",
            help="Partitions of __consumer_offsets (offsets.topic.num.partitions).",
        ),
    ] = 50,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Import nothing: read both sides, and compare digests."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Import topics of an Apache Kafka cluster: configs, committed records at their offsets, and
    the positions of consumer groups.

    The cluster at --path is a new one, before its nodes start for the first time. Run it again for
    what came meanwhile; a run that was killed goes on where it was.
    """
    if compression not in CODECS:
        raise SettingsError(f"--compression is one of {', '.join(CODECS)}")
    configure_logs("warning")
    from lakehead.broker.cli.migration.source_cluster import SourceCluster

    cluster = SourceCluster(source, command_config)
    if verify:
        run(_verify(cluster, store_uri(path), topic or [], as_json))
        return
    place = place_uri(path)
    if place.startswith("file:") and not place.endswith("/store"):
        place += "/store"  # as `lakehead start` has it in its folder
    run(
        _import(cluster, place, topic or [], CODECS.index(compression), offsets_partitions, as_json)
    )


async def _import(
    source: "SourceCluster",
    uri: str,
    names: list[str],
    codec: int,
    offsets_partitions: int,
    as_json: bool,
) -> None:
    from lakehead.broker.cli.migration.run import import_positions, import_topic
    from lakehead.broker.cli.migration.target_store import opened_target

    topics = source.topics(names)
    store = open_at(uri)
    rows: list[dict[str, Any]] = []
    try:
        async with opened_target(store, codec) as target:
            for topic in topics:
                done = await import_topic(source, target, topic)
                rows.append(
                    {
                        "topic": done.topic,
                        "partitions": done.partitions,
                        "records": done.records,
                        "end_offsets": done.end_offsets,
                        "left_out": ", ".join(done.left_out) or None,
                    }
                )
            groups = await import_positions(source, target, topics, offsets_partitions)
    finally:
        await store.close()
    columns = {
        "topic": "TOPIC",
        "partitions": "PARTITIONS",
        "records": "RECORDS",
        "end_offsets": "ENDS",
        "left_out": "CONFIGS LEFT OUT",
    }
    show_rows(rows, columns, as_json)
    typer.echo(f"lakehead: positions of {groups} groups imported", err=True)


async def _verify(source: "SourceCluster", uri: str, names: list[str], as_json: bool) -> None:
    from lakehead.broker.cli.migration.run import compared

    store = open_at(uri)
    try:
        state = await read_state(store)
        topics = [one for one in source.topics(names) if one.name in state.topics]
        found = await compared(source, store, state, topics)
    finally:
        await store.close()
    rows = [
        {
            "topic": one.topic,
            "partition": one.partition,
            "records": one.records,
            "source_records": one.source_records,
            "digest": one.digest,
            "same": one.is_same,
        }
        for one in found
    ]
    columns = {
        "topic": "TOPIC",
        "partition": "PARTITION",
        "records": "RECORDS",
        "source_records": "AT THE SOURCE",
        "same": "SAME",
    }
    show_rows(rows, columns, as_json)
    for one in found:
        if not one.is_same:
            raise DamageFound(f"{one.topic}-{one.partition} has other records than the source")
