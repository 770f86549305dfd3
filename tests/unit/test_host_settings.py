"""`lakehead settings`: what is refused, and that of several hosts one restarts at a time. The
nodes are entries of a metadata log: a restart is a program that registers them in the next epoch.
"""

import asyncio
import json
import random
import sys
from pathlib import Path
from typing import Any

import pytest

from lakehead.broker.cli.cluster import load_state
from lakehead.broker.cli.host_settings import host_of, needs_restart
from lakehead.broker.cli.rolling.host_state import ReadyWatch
from lakehead.broker.setting_sources import load
from lakehead.broker.settings import Settings
from lakehead.storage.clock import SystemClock
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import DrainNode, FenceNode, Record, RegisterNode
from lakehead.storage.metadata.rules import apply_records
from lakehead.storage.metadata.state import MetadataImage, NodeState
from lakehead.storage.object_store import FileStore
from tests.support.command_line import CommandLine, Outcome

RESTART = """
import asyncio, sys
from tests.unit.test_host_settings import restart
asyncio.run(restart(sys.argv[1], sys.argv[2]))
"""


def registered(node_id: int, host: str, *, epoch: int = 0) -> RegisterNode:
    return RegisterNode(
        node_id=node_id,
        epoch=epoch,
        incarnation=f"i{node_id}-{epoch}",
        host="127.0.0.1",
        port=1,  # nobody listens
        host_id=host,
    )


async def commit(data: str, records: list[Record], *, is_new: bool = False) -> None:
    store = FileStore(f"{data}/store")
    log = await MetadataLog.open(store, writer_id="w", clock=SystemClock(), rng=random.Random(1))
    if is_new:
        await log.create_cluster("cd" * 16)
    await log.commit(records)


async def draining(data: str) -> list[int]:
    nodes = (await load_state(data)).nodes
    return [n for n, node in sorted(nodes.items()) if node.is_draining]


def note(data: str, line: object) -> None:
    with Path(f"{data}/restarts").open("a") as file:
        file.write(json.dumps(line) + "\n")


async def restart(data: str, how: str) -> None:
    """Note which nodes are drained now, and register those of host a again."""
    nodes = (await load_state(data)).nodes
    note(data, [how, await draining(data)])
    fenced: list[Record] = [FenceNode(node_id=n, epoch=0) for n in (0, 1) if not nodes[n].is_fenced]
    await commit(data, fenced)
    if how != "lost":
        await commit(data, [registered(n, "a", epoch=1) for n in (0, 1)])


@pytest.fixture
def lakehead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv("TERM", "dumb")
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """A cluster of three hosts: a with nodes 0 and 1, b with 2, c with 3."""
    hosts: list[Record] = [registered(n, host) for n, host in enumerate("aabc")]
    asyncio.run(commit(str(tmp_path), hosts, is_new=True))
    return str(tmp_path)


def file_of(data: str, name: str, **more: object) -> str:
    given = {"store": data, "host.id": "a", "node.id": 0, "nodes": 2, "wal": "object:", **more}
    text = "".join(f'"{key}" = {json.dumps(value)}\n' for key, value in given.items())
    Path(f"{data}/{name}").write_text(text)
    return f"{data}/{name}"


def rolled(
    lakehead: CommandLine, data: str, how: str = "restart", timeout_s: int = 30, **new: Any
) -> Outcome:
    script = Path(f"{data}/restart.py")
    script.write_text(f"import sys\nsys.path.insert(0, {str(Path.cwd())!r})\n{RESTART}")
    command = f"{sys.executable} {script} {data}"
    return lakehead(
        *("settings", "roll", file_of(data, "now.toml"), file_of(data, "new.toml", **new)),
        *("--restart", f"{command} {how}", "--reload", f"{command} reload"),
        *("--timeout", str(timeout_s), "--min-ready", "0.5"),
    )


def restarts(data: str) -> list[object]:
    file = Path(f"{data}/restarts")
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def test_a_host_restarts_drained_and_may_lead_after_it(lakehead: CommandLine, data: str) -> None:
    outcome = rolled(lakehead, data)
    assert outcome.status == 0, outcome.err
    assert restarts(data) == [["restart", [0, 1]]]
    assert asyncio.run(draining(data)) == []


@pytest.mark.parametrize(
    "trouble",
    [
        pytest.param([DrainNode(node_id=2, epoch=0, is_draining=True)], id="it is drained"),
        pytest.param(
            [DrainNode(node_id=2, epoch=0, is_draining=True), FenceNode(node_id=2, epoch=0)],
            id="it restarts, or did not come back",
        ),
    ],
)
def test_no_host_restarts_while_another_one_does(
    lakehead: CommandLine, data: str, trouble: list[Record]
) -> None:
    asyncio.run(commit(data, trouble))
    outcome = rolled(lakehead, data)
    assert outcome.status == 1
    assert "node 2 of b" in outcome.err
    assert restarts(data) == []
    assert asyncio.run(draining(data)) == [2], "and nothing of this host stays drained"


def test_a_host_that_is_gone_keeps_no_other_from_restarting(
    lakehead: CommandLine, data: str
) -> None:
    asyncio.run(commit(data, [FenceNode(node_id=2, epoch=0)]))
    assert rolled(lakehead, data).status == 0
    assert restarts(data) == [["restart", [0, 1]]]


def test_a_host_that_does_not_come_back_is_said_and_keeps_the_others_from_restarting(
    lakehead: CommandLine, data: str
) -> None:
    outcome = rolled(lakehead, data, how="lost", timeout_s=3)
    assert outcome.status == 1
    assert "node 0 of a is down; waited for 3 s" in outcome.err
    assert asyncio.run(draining(data)) == [0, 1], "what keeps the others"
    # With the next settings it comes back.
    assert rolled(lakehead, data).status == 0
    assert asyncio.run(draining(data)) == []


@pytest.mark.parametrize(("new", "how"), [({}, "reload"), ({"port": 9192}, "restart")])
def test_the_only_host_restarts_node_after_node_where_that_is_enough(
    lakehead: CommandLine, data: str, new: dict[str, Any], how: str
) -> None:
    asyncio.run(commit(data, [FenceNode(node_id=n, epoch=0) for n in (2, 3)]))
    outcome = rolled(lakehead, data, **new)
    assert outcome.status == 0, outcome.err
    assert restarts(data) == [[how, []]]


def node_in(epoch: int) -> NodeState:
    records = [registered(0, "a", epoch=each) for each in range(epoch + 1)]
    return apply_records(MetadataImage(), records, 0).nodes[0]


def test_a_host_whose_nodes_crash_in_a_loop_is_not_back() -> None:
    ready = ReadyWatch(min_ready_s=15)
    for second in range(300):
        down = "node 0 of a is down" if second % 20 >= 14 else ""
        assert ready.amiss([node_in(1 + second // 20)], down, second)
    assert ready.amiss([node_in(16)], "", 300).endswith("(they started again 15 times)")
    assert ready.amiss([node_in(16)], "", 314)
    assert not ready.amiss([node_in(16)], "", 315)


def test_a_host_serves_once_all_its_nodes_do(lakehead: CommandLine, data: str) -> None:
    config = file_of(data, "now.toml")
    assert lakehead("settings", "serving", config, "--min-ready", "0").status == 0
    more = file_of(data, "more.toml", nodes=4)
    assert "node 2 of a has not registered" in lakehead.fails(
        "settings", "serving", more, "--timeout", "1"
    )


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"log.levle": "info"}, "unknown setting: log.levle"),
        ({"log.level": "loud"}, "'loud' is not one of"),
        ({"port": 65535}, "port"),
        ({"store": "memory:"}, "several nodes need one that all"),
    ],
)
def test_settings_that_nodes_would_not_start_with_are_refused(
    lakehead: CommandLine, data: str, more: dict[str, object], line: str
) -> None:
    assert line in lakehead.fails("settings", "check", file_of(data, "bad.toml", **more))
    assert lakehead("settings", "check", file_of(data, "good.toml")).status == 0


def test_a_check_of_settings_names_variables_that_no_setting_has(
    lakehead: CommandLine, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHEAD_NUM_PARTITONS", "3")
    outcome = lakehead("settings", "check", file_of(data, "good.toml"))
    assert outcome.status == 0
    assert "LAKEHEAD_NUM_PARTITONS" in outcome.err
    assert "LAKEHEAD_NUM_PARTITIONS" in outcome.err, "what was meant"


def test_which_changes_the_supervisor_has_to_read_itself() -> None:
    assert needs_restart(Settings(), load({"port": "9093"}))
    assert needs_restart(Settings(), load({"nodes": "2"}))
    assert not needs_restart(Settings(), load({"log.retention.ms": "1"}))
    assert host_of(load({"host.id": "h", "node.id": "7", "nodes": "2"})).node_ids == (7, 8)
