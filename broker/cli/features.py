"""`lakehead features`: the feature level of a cluster, and raising it after an update of all nodes.

Both read the metadata log in the object store and request from every node the levels that it
supports, as `lakehead nodes` does.
"""

import random
from collections.abc import Mapping
from typing import Annotated, Any

import typer

from lakehead.broker.cli.cluster import (
    DEFAULT_PATH,
    PathOption,
    open_cluster,
    open_log,
    read_state,
    run,
)
from lakehead.broker.cli.confirmation import YesOption, confirm
from lakehead.broker.cli.help_page import CommandLine
from lakehead.broker.cli.listing import JsonOption, show_rows
from lakehead.broker.cli.node_network import CommandConfigOption
from lakehead.broker.cli.nodes import nudge_nodes
from lakehead.broker.features import Levels, features, raised, supported
from lakehead.storage.errors import SettingsError
from lakehead.storage.format.feature_level import METADATA_VERSION, NEWEST_LEVEL
from lakehead.storage.metadata.records import Record
from lakehead.storage.metadata.state import MetadataImage

app = CommandLine(help="Show the feature level of a cluster, or raise it.")


@app.command("describe")
def describe(
    path: PathOption = DEFAULT_PATH,
    as_json: JsonOption = False,
    command_config: CommandConfigOption = None,  # noqa: ARG001 - by its callback
) -> None:
    """Show the level of each feature, and the levels that each node supports.

    A node whose release does not say what it supports has no numbers.
    """
    state, heard = run(_look(path))
    rows: list[dict[str, Any]] = [
        {"feature": name, "node": None, "min": one.least, "max": one.most, "level": one.level}
        for name, one in features(state).items()
    ]
    for node_id, node in sorted(state.nodes.items()):
        levels = None if node.is_fenced else supported(node, heard)
        least, most = levels or (None, None)
        if not node.is_fenced:
            rows.append(
                {
                    "feature": METADATA_VERSION,
                    "node": node_id,
                    "min": least,
                    "max": most,
                    "level": None,
                }
            )
    columns = {"feature": "FEATURE", "node": "NODE", "min": "MIN", "max": "MAX", "level": "LEVEL"}
    show_rows(rows, columns, as_json)


async def _look(path: str) -> tuple[MetadataImage, Mapping[int, Levels]]:
    store = open_cluster(path)
    try:
        state = await read_state(store)
    finally:
        await store.close()
    return state, await _heard(state)


async def _heard(state: MetadataImage) -> Mapping[int, Levels]:
    responses = await nudge_nodes(state) or {}
    return {n: response.levels for n, response in responses.items() if response.levels is not None}


@app.command("upgrade")
def upgrade(
    path: PathOption = DEFAULT_PATH,
    level: Annotated[
        int, typer.Option("--level", metavar="N", help="The level of metadata.version.")
    ] = NEWEST_LEVEL,
    yes: YesOption = False,
    command_config: CommandConfigOption = None,  # noqa: ARG001 - by its callback
) -> None:
    """Raise metadata.version, when all nodes run a release that supports the level.

    It cannot be lowered again: releases that do not support it are refused from then on.
    """
    confirm(f"Raise {METADATA_VERSION} to {level}? It cannot be lowered again.", yes=yes)
    before, after = run(_upgrade(path, level))
    if before == after:
        typer.echo(f"{METADATA_VERSION} is {after} already")
    else:
        typer.echo(f"{METADATA_VERSION} was {before} and is {after} now")


async def _upgrade(path: str, level: int) -> tuple[int, int]:
    store = open_cluster(path)
    try:
        log = await open_log(store, writer="features")
        before = log.state.metadata_version
        heard = await _heard(log.state)

        def plan(state: MetadataImage) -> list[Record]:
            return _plan(state, level, heard)

        state = await log.commit_with(plan)
        await nudge_nodes(state)
    finally:
        await store.close()
    return before, state.metadata_version


def _plan(state: MetadataImage, level: int, heard: Mapping[int, Levels]) -> list[Record]:
    now, most = state.metadata_version, NEWEST_LEVEL
    if level == now:
        return []
    if level < now:
        raise SettingsError(
            f"{METADATA_VERSION} is {now} and cannot be lowered: it says what the metadata may hold"
        )
    if level > most:
        raise SettingsError(f"this release supports {METADATA_VERSION} up to {most}, not {level}")
    return raised(state, level, heard, random.SystemRandom())
