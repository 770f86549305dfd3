"""The `lakehead` command on a small cluster in a folder: what it shows, and how it fails."""

import asyncio
import json
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from lakehead.broker.cli.app import app
from lakehead.broker.cli.commands import COMMANDS, FORMER_NAMES
from lakehead.broker.cli.help_page import summary
from lakehead.broker.setting_sources import SETTINGS
from lakehead.storage.clock import SystemClock
from lakehead.storage.format.record_batch import patch
from lakehead.storage.metadata.records import CreateStream, CreateTopic
from lakehead.storage.object_store import FileStore
from lakehead.storage.stream.engine import StreamEngine
from lakehead.storage.stream.settings import NodeIdentity, StorageSettings
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import open_wal
from tests.support.command_line import CommandLine
from tests.support.record_batches import TestRecord, encode_batch
from tests.support.wal_tools import opener

ROOT = Path(__file__).resolve().parents[2]
TOPIC_ID = "ab" * 16


@pytest.fixture
def lakehead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    monkeypatch.setenv("TERM", "dumb")
    return CommandLine(monkeypatch, capsys)


@pytest.fixture
def data(tmp_path: Path) -> str:
    """The data folder of a cluster: topic `orders`, two partitions; 9 records uploaded, 2 in the
    WAL.
    """
    asyncio.run(_fill(tmp_path))
    return str(tmp_path)


async def _fill(folder: Path) -> None:
    def crashed(name: str, error: BaseException) -> None:
        raise AssertionError(name) from error

    scope = TaskScope(crashed)
    engine = await StreamEngine.open(
        store=FileStore(str(folder / "store")),
        open_wal=opener(
            await open_wal(f"block:{folder}/wal?size=64MiB", rng=random.Random(1), node_id=3)
        ),
        node=NodeIdentity(node_id=3, host="localhost", port=9092, rack="a"),
        clock=SystemClock(),
        rng=random.Random(2),
        settings=StorageSettings(upload_age_s=3600),
        scope=scope,
    )
    try:
        topic = CreateTopic(name="orders", topic_id=TOPIC_ID, configs={"retention.ms": "1000"})
        streams = [CreateStream(stream_id=n, topic_id=TOPIC_ID, partition=n) for n in range(2)]
        await engine.metadata.commit([topic, *streams])
        first, second = await engine.open_streams([0, 1])
        for stream, count in ((first, 4), (second, 3), (first, 2)):
            await _append(stream, count)
        await engine.upload_now()
        await _append(second, 2)
    finally:
        await scope.close()


async def _append(stream, count: int) -> None:  # type: ignore[no-untyped-def]
    base = stream.next_offset
    records = [
        TestRecord(offset=base + n, timestamp=1_700_000_000_000, key=b"k", value=b"v")
        for n in range(count)
    ]
    batch = bytearray(encode_batch(records, codec="zstd"))
    patch(batch, 0, base, stream.epoch)
    done = asyncio.Event()
    stream.append(
        memoryview(batch),
        count=count,
        max_timestamp=1_700_000_000_000,
        on_done=lambda _: done.set(),
    )
    await done.wait()


def rows(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


def test_topics_are_listed_from_the_store_alone(lakehead: CommandLine, data: str) -> None:
    found = rows(lakehead("topics", "list", "--path", data, "--json").out)
    assert [(row["topic"], row["partitions"], row["records"]) for row in found] == [
        ("orders", 2, 9)
    ]
    table = lakehead("topics", "list", "--path", data).out
    assert table.split()[:5] == ["TOPIC", "PARTITIONS", "OFFSETS", "BYTES", "OBJECTS"]
    assert "orders" in table


def test_a_topic_is_described_with_its_settings_and_partitions(
    lakehead: CommandLine, data: str
) -> None:
    (found,) = rows(lakehead("topics", "describe", "orders", "-p", data, "--json").out)
    assert found["id"] == TOPIC_ID
    assert found["configs"] == {"retention.ms": "1000"}
    partitions = found["partitions"]
    assert isinstance(partitions, list)
    assert [(p["partition"], p["leader"], p["end_offset"]) for p in partitions] == [
        (0, 3, 6),
        (1, 3, 3),
    ]
    assert "retention.ms=1000" in lakehead("topics", "describe", "orders", "-p", data).out


def test_state_names_the_cluster_and_its_nodes(lakehead: CommandLine, data: str) -> None:
    (found,) = rows(lakehead("inspect", "state", "--path", data, "--json").out)
    assert (found["topics"], found["streams"]) == (1, 2)
    assert found["nodes"] == [
        {"node": 3, "epoch": 0, "address": "localhost:9092", "rack": "a", "fenced": False}
        | {"wal_floor": "0/0", "streams": 2, "assigned": 0, "draining": False}
        | {"host": None, "wal": None}
    ]
    assert "localhost:9092" in lakehead("inspect", "state", "--path", data).out


def test_the_log_is_listed_and_an_entry_is_shown(lakehead: CommandLine, data: str) -> None:
    entries = rows(lakehead("inspect", "log", "--path", data, "--json").out)
    assert [row["entry"] for row in entries] == list(range(len(entries)))
    assert any("CreateTopic, 2 x CreateStream" in str(row["records"]) for row in entries)
    entry = json.loads(lakehead("inspect", "log", "0", "--path", data).out)
    assert entry["records"][0]["type"] == "ClusterCreated"
    assert "no entry 999" in lakehead.fails("inspect", "log", "999", "--path", data)
    entry_file = Path(data) / "store/meta/log" / f"{1:020d}.json"
    entry_file.chmod(0o644)
    whole = entry_file.read_bytes()
    entry_file.write_bytes(whole[:-2])
    shown = rows(lakehead("inspect", "log", "--path", data, "--json").out)
    assert [row["entry"] for row in shown] == [row["entry"] for row in entries]
    assert "DAMAGED" in str(shown[1]["records"])
    entry_file.write_bytes(whole)


def test_an_object_is_shown_by_item_and_by_batch(lakehead: CommandLine, data: str) -> None:
    (listed,) = rows(lakehead("inspect", "objects", "--path", data, "--json").out)
    key = str(listed["key"])
    items = rows(lakehead("inspect", "object", key, "--path", data, "--json").out)
    assert [(i["topic"], i["partition"], i["end_offset"], i["crc"]) for i in items] == [
        ("orders", 0, 6, "ok"),
        ("orders", 1, 3, "ok"),
    ]
    batches = rows(lakehead("inspect", "object", key, "--batches", "--path", data, "--json").out)
    assert [(b["partition"], b["offset"], b["records"], b["codec"]) for b in batches] == [
        (0, 0, 4, "zstd"),
        (0, 4, 2, "zstd"),
        (1, 0, 3, "zstd"),
    ]


def test_damage_in_an_object_is_found_and_named(lakehead: CommandLine, data: str) -> None:
    (listed,) = rows(lakehead("inspect", "objects", "--path", data, "--json").out)
    file = Path(data) / "store" / str(listed["key"])
    body = bytearray(file.read_bytes())
    body[60] ^= 1
    file.chmod(0o644)
    file.write_bytes(body)
    outcome = lakehead("inspect", "object", str(listed["key"]), "--path", data, "--json")
    assert outcome.status == 1
    assert [row["crc"] for row in rows(outcome.out)] == ["BAD", "ok"]
    assert "1 damaged" in outcome.err


def test_a_write_ahead_log_shows_what_is_not_uploaded(lakehead: CommandLine, data: str) -> None:
    (summary,) = rows(lakehead("inspect", "wal", f"{data}/wal", "--json").out)
    assert (summary["node"], summary["clean_shutdown"]) == (3, False)
    records = rows(lakehead("inspect", "wal", f"{data}/wal", "--records", "--json").out)
    assert (records[-1]["stream"], records[-1]["offset"], records[-1]["records"]) == (1, 3, 2)


def test_mistakes_are_one_line_that_says_what_to_do(
    lakehead: CommandLine, data: str, tmp_path: Path
) -> None:
    assert "lakehead start" in lakehead.fails("topics", "list", "--path", str(tmp_path / "none"))
    assert "topics list" in lakehead.fails("topics", "describe", "nope", "--path", data)
    assert "inspect objects" in lakehead.fails("inspect", "object", "data/x", "--path", data)
    assert "no topic 'nope'" in lakehead.fails("inspect", "objects", "-t", "nope", "--path", data)
    assert "folder" in lakehead.fails("inspect", "wal", data)
    assert "No such file" in lakehead.fails("inspect", "wal", f"{data}/none")
    (tmp_path / "text").write_bytes(b"x" * 10_000)
    assert "not a write-ahead log" in lakehead.fails("inspect", "wal", str(tmp_path / "text"))
    assert "whole number" in lakehead.fails("start", "--port", "x")
    assert "settings file" in lakehead.fails("start", "--config", str(tmp_path / "none.toml"))
    assert "NAME=VALUE" in lakehead.fails("topics", "create", "t", "--set", "x")
    assert "no broker responds" in lakehead.fails(
        "topics", "delete", "t", "--yes", "-b", "127.0.0.1:1"
    )


def test_a_store_of_a_newer_format_is_refused(lakehead: CommandLine, data: str) -> None:
    entry = Path(data) / "store/meta/log" / f"{0:020d}.json"
    entry.chmod(0o644)
    # A newer release need not have our checksum; one that is there must be right.
    body = b"{" + entry.read_bytes().partition(b",")[2]
    entry.write_bytes(body.replace(b'"version":2', b'"version":99'))
    assert "upgrade" in lakehead.fails("topics", "list", "--path", data)


def test_help_all_shows_every_setting_and_help_one_screen(
    lakehead: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for command in ("start", "doctor"):
        page = lakehead(command, "--help").out
        assert len(page.splitlines()) <= 52
        assert "--help-all" in page
        assert "settings list" in page or command != "start"
        every = lakehead(command, "--help-all").out
        assert [s.name for s in SETTINGS if f"--{s.name} " not in every] == []


def test_the_page_of_all_commands_has_one_line_for_each(
    lakehead: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    lines = lakehead("--help").out.splitlines()
    shown = {name: one.summary for group in COMMANDS.values() for name, one in group.items()}
    missing = [name for name, words in shown.items() if f"  {name:<19}  {words}" not in lines]
    assert missing == []


def test_every_page_of_help_fits_two_screens(
    lakehead: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for path, _ in leaves(typer.main.get_command(app), ()):
        assert len(lakehead(*path, "--help").out.splitlines()) <= 100, path


def test_settings_are_found_by_words_of_their_names_and_meanings(lakehead: CommandLine) -> None:
    assert [row["setting"] for row in rows(lakehead("settings", "list", "--json").out)] == [
        setting.name for setting in SETTINGS
    ]
    for words in (("NUM_PARTITIONS",), ("LAKEHEAD_NUM_PARTITIONS",), ("--num-partitions",)):
        found = rows(lakehead("settings", "list", "--json", "--", *words).out)
        assert "num.partitions" in [row["setting"] for row in found]
        assert found[0].keys() >= {"default", "environment", "meaning"}
    page = lakehead("settings", "list", "write-ahead", "size").out
    assert "wal.size" in page
    assert "default: 1GiB" in page
    assert "num.partitions" not in page
    assert "did you mean num.partitions?" in lakehead.fails("settings", "list", "num.partitons")


def test_pages_of_help_have_names_in_full_and_no_types_of_python(
    lakehead: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    for path, command in leaves(typer.main.get_command(app), ()):
        shown = [one for one in command.params if not getattr(one, "hidden", False)]
        has_more = any("--help-all" in one.opts for one in shown)
        text = lakehead(*path, "--help-all" if has_more else "--help").out
        names = [name for one in shown for name in one.opts if name.startswith("-")]
        assert [name for name in names if name not in text] == [], path
        assert re.findall(r"<(?:bool|str|int|float|path)|[╭│╰]", text) == [], path


DOCUMENTED = dict(
    re.findall(
        r"^\| `([a-z][^`]+)` \| [^|]+ \| (`.+) \|$",
        (ROOT / "docs/json-output.md").read_text(),
        re.MULTILINE,
    )
)
KINDS: dict[str, Any] = {
    "text": str,
    "number": (int, float),
    "boolean": bool,
    "list": list,
    "object": dict,
}
JSON_COMMANDS = {
    "nodes": "nodes",
    "features describe": "features describe",
    "settings list": "settings list",
    "topics list": "topics list",
    "topics describe": "topics describe orders",
    "why": "why orders-0",
    "tables": "tables",
    "materialize --dry-run": "materialize --dry-run",
    "optimize": "optimize",
    "vacuum": "vacuum",
    "maintain --dry-run": "maintain --dry-run",
    "forget": "forget orders --key k --dry-run",
    "compact-objects": "compact-objects",
    "compact-objects --dry-run": "compact-objects --dry-run --count 2",
    "compact-topics": "compact-topics",
    "apply-retention": "apply-retention",
    "sweep": "sweep --yes",
    "sweep --dry-run": "sweep --dry-run --grace 0 --margin 0",
    "inspect state": "inspect state",
    "inspect log": "inspect log",
    "inspect checkpoint": "inspect checkpoint",
    "inspect objects": "inspect objects",
    "inspect object": "inspect object KEY",
    "inspect object --batches": "inspect object KEY --batches",
    "inspect wal": "inspect wal DATA/wal",
    "inspect wal --records": "inspect wal DATA/wal --records",
    "inspect keys": "inspect keys",
    "verify": "verify",
    "verify --dry-run": "verify --dry-run",
    "leak-check": "leak-check",
    "rebuild-catalog --dry-run": "rebuild-catalog --dry-run",
}


@pytest.mark.parametrize("name", JSON_COMMANDS)
def test_json_has_the_fields_of_the_page(lakehead: CommandLine, data: str, name: str) -> None:
    """docs/json-output.md: programs count on these names and types."""
    words = JSON_COMMANDS[name].replace("DATA", data)
    if "KEY" in words:
        (listed,) = rows(lakehead("inspect", "objects", "--path", data, "--json").out)
        words = words.replace("KEY", str(listed["key"]))
    path = f"{data}/store" if name.startswith("rebuild-catalog") else data
    of_cluster = () if name.startswith("settings") else ("--path", path)
    outcome = lakehead(*words.split(), *of_cluster, "--json")
    assert (outcome.status, outcome.err) == (0, ""), "no progress where there is no terminal"
    fields = re.findall(r"`(\w+)` (\w+)(\?)?", re.sub(r"\(.*?\)", "", DOCUMENTED[name]))
    assert fields
    for row in rows(outcome.out):
        row.pop("ranges", None)  # of forget's dry run alone
        documented = [field for field, _, _ in fields]
        assert list(row) == documented, "docs/json-output.md lists every field"
        for field, kind, optional in fields:
            value = row[field]
            assert (value is None and optional) or isinstance(value, KINDS[kind]), (field, value)


def test_every_command_with_json_is_on_the_page() -> None:
    text = (ROOT / "docs/json-output.md").read_text()
    for path, command in leaves(typer.main.get_command(app), ()):
        if any("--json" in one.opts for one in command.params):
            assert f"`{' '.join(path)}" in text, path


def leaves(command: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if not hasattr(command, "commands"):
        yield path, command
    for name, one in getattr(command, "commands", {}).items():
        yield from leaves(one, (*path, name))


def test_the_page_of_all_commands_has_the_first_words_of_each() -> None:
    commands: Any = typer.main.get_command(app)
    shown = {name: one.summary for group in COMMANDS.values() for name, one in group.items()}
    assert shown == {name: summary(one.help) for name, one in commands.commands.items()}


def test_a_former_name_of_a_command_works_and_names_the_one_of_today(
    lakehead: CommandLine, data: str
) -> None:
    commands: Any = typer.main.get_command(app)
    for former, name in FORMER_NAMES.items():
        assert name in commands.commands
        assert former not in lakehead("--help").out.split()
        outcome = lakehead(former, "--dry-run", "--path", data)
        assert outcome.status == 0
        assert f"{former} is called {name} now" in outcome.err


def test_one_flag_has_one_meaning() -> None:
    """A short name stands for one long name, and --json is how a command prints."""
    meanings: dict[str, set[str]] = {}
    for path, command in leaves(typer.main.get_command(app), ()):
        for one in command.params:
            longest = max(one.opts, key=len)
            for short in one.opts:
                if len(short) == 2:
                    meanings.setdefault(short, set()).add(longest)
            assert "--json" not in one.opts or one.is_flag, path
    assert {short: names for short, names in meanings.items() if len(names) > 1} == {}


def test_version_is_shown(lakehead: CommandLine) -> None:
    outcome = lakehead("--version")
    assert outcome.status == 0
    assert outcome.out.startswith("lakehead ")


def test_commands_and_nodes_load_no_kernels_before_they_need_them() -> None:
    """Compilers cost half a second and fifty megabytes: in each node, and in each command.
    The library for tokens costs a tenth, and few listeners take tokens.
    """
    heavy = "{'numba', 'llvmlite', 'pyarrow', 'deltalake', 'pyspark', 'joserfc'} & set(sys.modules)"
    commands = "dict(typer.main.get_command(lakehead.broker.cli.app.app).commands)"
    modules = "lakehead.broker.cli.app, lakehead.broker.node"
    script = f"import sys, typer, {modules}; {commands}; print(*{heavy})"
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert told.stdout.split() == []


def test_a_command_brings_no_other_along() -> None:
    script = (
        "import sys, typer, lakehead.broker.cli.app as cli\n"
        "typer.main.get_command(cli.app).commands['start']\n"
        "print(*(name for name in sys.modules if name.startswith('lakehead.broker.cli.')))"
    )
    told = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, check=True, capture_output=True, text=True
    )
    assert set(told.stdout.split()) == {
        f"lakehead.broker.cli.{name}"
        for name in (
            *("app", "commands", "help_page", "imports", "process", "sections"),
            *("setting_flags", "start"),
        )
    }
