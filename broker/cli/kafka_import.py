"""`lakehead import`: topics of an Apache Kafka cluster, with offsets, positions of groups, ACLs and
quotas.
"""

import random
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

AS_PRODUCED = "producer"
"""The value of --compression that leaves batches as they are, as that of compression.type."""


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
    without: Annotated[
        list[str] | None,
        typer.Option(
            "--without",
            metavar="PART",
            help="Leave out acls, quotas, users or positions. May be repeated.",
        ),
    ] = None,
    compression: Annotated[
        str,
        typer.Option(
            "--compression",
            metavar="CODEC",
            help="Codec of the batches; producer: they are copied as they are.",
        ),
    ] = AS_PRODUCED,
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
    """Import topics of an Apache Kafka cluster.

    With their configs, committed records at their offsets, the positions of consumer groups, ACLs
    and client quotas.

    The cluster at --path is a new one, before its nodes start for the first time. Run it again for
    what came meanwhile; a run that was killed goes on where it was.
    """
    if compression not in {AS_PRODUCED, *CODECS}:
        raise SettingsError(f"--compression is one of {AS_PRODUCED}, {', '.join(CODECS)}")
    configure_logs("warning")
    from lakehead.broker.cli.migration.run import PARTS
    from lakehead.broker.cli.migration.source_cluster import SourceCluster

    for part in without or ():
        if part not in PARTS:
            raise SettingsError(f"--without is one of {', '.join(PARTS)}, not {part}")
    cluster = SourceCluster(source, command_config)
    if verify:
        run(_verify(cluster, store_uri(path), topic or [], as_json))
        return
    place = place_uri(path)
    if place.startswith("file:") and not place.endswith("/store"):
        place += "/store"  # as `lakehead start` has it in its folder
    codec = None if compression == AS_PRODUCED else CODECS.index(compression)
    run(_import(cluster, place, topic or [], without or [], codec, offsets_partitions, as_json))


async def _import(
    source: "SourceCluster",
    uri: str,
    names: list[str],
    without: list[str],
    codec: int | None,
    offsets_partitions: int,
    as_json: bool,
) -> None:
    from lakehead.broker.cli.migration.run import (
        POSITIONS,
        import_access,
        import_positions,
        import_topic,
    )
    from lakehead.broker.cli.migration.source_brokers import SourceBrokers
    from lakehead.broker.cli.migration.target_store import opened_target

    topics = source.topics(names)
    brokers = SourceBrokers(source.settings, random.SystemRandom())
    store = open_at(uri)
    groups = 0
    rows: list[dict[str, Any]] = []
    try:
        async with opened_target(store, codec) as target:
            for topic in topics:
                done = await import_topic(source, brokers, target, topic)
                rows.append(
                    {
                        "topic": done.topic,
                        "partitions": done.partitions,
                        "records": done.records,
                        "end_offsets": done.end_offsets,
                        "left_out": ", ".join(done.left_out) or None,
                    }
                )
            if POSITIONS not in without:
                groups = await import_positions(source, target, topics, offsets_partitions)
            access = await import_access(brokers, target, without)
    finally:
        brokers.close()
        await store.close()
    columns = {
        "topic": "TOPIC",
        "partitions": "PARTITIONS",
        "records": "RECORDS",
        "end_offsets": "ENDS",
        "left_out": "CONFIGS LEFT OUT",
    }
    show_rows(rows, columns, as_json)
    if access.users:
        users = [
            {"user": one.user, "mechanism": one.mechanism, "iterations": one.iterations}
            for one in access.users
        ]
        headings = {"user": "USER WITHOUT A PASSWORD", "mechanism": "MECHANISM"}
        show_rows(users, headings | {"iterations": "ITERATIONS"}, as_json)
    typer.echo(
        f"lakehead: positions of {groups} groups, {access.acls} ACLs and quotas of {access.quotas} "
        "entities are those of the source",
        err=True,
    )
    for quota in access.left_out:
        typer.echo(f"lakehead: left out: quota {quota}", err=True)
    if access.users:
        one = access.users[0]
        typer.echo(
            "lakehead: Kafka gives no passwords away: set one for each of these users, as soon as "
            f"a node runs: kafka-configs --bootstrap-server HOST:PORT --alter --entity-type users "
            f"--entity-name {one.user} --add-config "
            f"'{one.mechanism}=[iterations={one.iterations},password=...]'",
            err=True,
        )


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
