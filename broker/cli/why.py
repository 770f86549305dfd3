"""`lakehead why`: a partition's leader, the place of its data, and each thing that it waits for."""

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from lakehead.broker.cli.cluster import (
    DEFAULT_PATH,
    PathOption,
    open_cluster,
    read_state,
    run,
)
from lakehead.broker.cli.listing import JsonOption, show_fields
from lakehead.broker.cli.node_network import CommandConfigOption
from lakehead.broker.cli.nodes import nudge_nodes
from lakehead.broker.diagnosis.partition import PartitionFacts, explain, find_partition
from lakehead.storage.plain_text import size_text

PartitionArgument = Annotated[
    str, typer.Argument(metavar="TOPIC-PARTITION", help="A partition, like orders-0.")
]
GroupsOption = Annotated[
    str | None,
    typer.Option(
        "--bootstrap-server",
        "-b",
        metavar="HOST:PORT",
        help="A broker of the cluster: shows the lag of consumer groups, too.",
    ),
]


def why(
    partition: PartitionArgument,
    path: PathOption = DEFAULT_PATH,
    bootstrap: GroupsOption = None,
    command_config: CommandConfigOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show all that a partition waits for.

    Also its leader and epochs, and the place of its data.

    Reads the metadata in the object store, and sends a heartbeat to the nodes. Offsets are those in
    objects: the leader has later records in its write-ahead log. Status 0, also if it waits.
    """
    facts = run(_facts(path, partition))
    lags = {} if bootstrap is None else _lags(bootstrap, command_config, facts)
    if as_json:
        show_fields(msgspec.to_builtins(facts) | {"lags": lags}, as_json)
        return
    show_fields(_shown(facts), as_json)
    for group, lag in sorted(lags.items()):
        typer.echo(f"group {group} is {lag} records behind")
    for reason in facts.waits:
        typer.echo(f"waits: {reason}")
    if not facts.waits:
        typer.echo("waits: for nothing")


async def _facts(path: str, name: str) -> PartitionFacts:
    store = open_cluster(path)
    try:
        state = await read_state(store)
    finally:
        await store.close()
    topic, stream = find_partition(state, name)
    responses = await nudge_nodes(state)
    return explain(state, topic, stream, None if responses is None else responses.keys())


def _shown(facts: PartitionFacts) -> dict[str, Any]:
    epochs = ", ".join(f"{epoch} from offset {offset}" for epoch, offset in facts.epochs)
    return {
        "partition": f"{facts.topic}-{facts.partition} (stream {facts.stream_id})",
        "leader": None if facts.leader is None else f"node {facts.leader}",
        "leader epoch": facts.leader_epoch if facts.leader_epoch >= 0 else None,
        "newest epochs": epochs or None,
        "assigned to": None if facts.assigned is None else f"node {facts.assigned}",
        "preferred": None if facts.preferred is None else f"node {facts.preferred}",
        "offsets": f"{facts.start_offset} to {facts.end_offset}",
        "objects": f"{facts.objects}, {size_text(facts.bytes)}",
        "oldest object": facts.oldest_object,
        "newest object": facts.newest_object,
        "write-ahead log": facts.log,
        "table": None if facts.table_end is None else f"has offsets below {facts.table_end}",
    }


def _lags(bootstrap: str, config: str | None, facts: PartitionFacts) -> dict[str, int]:
    from lakehead.broker.cli.kafka_admin import KafkaAdmin

    admin = KafkaAdmin(bootstrap, Path(config) if config else None)
    return admin.lags(facts.topic, facts.partition)
