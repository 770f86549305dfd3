"""`lakehead features`: what it shows of the log, and when it raises the level."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from lakehead.broker.cli.cluster import load_state
from lakehead.storage.clock import SystemClock
from lakehead.storage.format.feature_level import BASE_LEVEL, METADATA_VERSION, NEWEST_LEVEL
from lakehead.storage.metadata import records as r
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.object_store.file import FileStore
from tests.support.command_line import CommandLine

NODE = r.RegisterNode(node_id=0, epoch=0, incarnation="i", host="127.0.0.1", port=1)


@pytest.fixture
def lakehead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def cluster(folder: Path, *records: r.Record, at_base: bool = True) -> str:
    """The data folder of a cluster, made by the release before or by this one."""

    async def make() -> None:
        store = FileStore(str(folder / "store"))
        log = await MetadataLog.open(
            store, writer_id="w", clock=SystemClock(), rng=random.Random(1)
        )
        if at_base:
            await log.commit([r.ClusterCreated(cluster_id="c")])
        else:
            await log.create_cluster("c")
        await log.commit(records)

    asyncio.run(make())
    return str(folder)


def described(lakehead: CommandLine, data: str) -> list[dict[str, Any]]:
    outcome = lakehead("features", "describe", "--json", "--path", data)
    assert outcome.status == 0
    return [json.loads(line) for line in outcome.out.splitlines()]


def level(data: str) -> int:
    return asyncio.run(load_state(data)).metadata_version


def test_a_new_cluster_is_at_the_newest_level(lakehead: CommandLine, tmp_path: Path) -> None:
    known = msgspec.structs.replace(NODE, min_level=1, max_level=NEWEST_LEVEL)
    data = cluster(tmp_path, known, at_base=False)
    feature, *_, node = described(lakehead, data)
    assert (feature["feature"], feature["level"]) == (METADATA_VERSION, NEWEST_LEVEL)
    assert (node["node"], node["min"], node["max"]) == (0, 1, NEWEST_LEVEL)
    assert "is 2 already" in lakehead("features", "upgrade", "--yes", "--path", data).out


def test_a_cluster_without_live_nodes_is_raised(lakehead: CommandLine, tmp_path: Path) -> None:
    data = cluster(tmp_path, NODE, r.FenceNode(node_id=0, epoch=0))
    assert level(data) == BASE_LEVEL
    assert lakehead("features", "upgrade", "--yes", "--path", data).status == 0
    assert level(data) == NEWEST_LEVEL
    refused = lakehead.fails("features", "upgrade", "--yes", "--level", "1", "--path", data)
    assert "cannot be lowered" in refused
    refused = lakehead.fails("features", "upgrade", "--yes", "--level", "9", "--path", data)
    assert "this release supports metadata.version up to" in refused
    assert level(data) == NEWEST_LEVEL


def test_a_live_node_that_does_not_say_its_levels_holds_the_level(
    lakehead: CommandLine, tmp_path: Path
) -> None:
    data = cluster(tmp_path, NODE)
    refused = lakehead.fails("features", "upgrade", "--yes", "--path", data)
    assert "Broker 0 does not say which versions it supports" in refused
    assert level(data) == BASE_LEVEL
    assert described(lakehead, data)[-1]["max"] is None
