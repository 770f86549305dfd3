"""The status of declared tables: lag, files, dead letters, cost, and what is wrong."""

import json
import socket
import urllib.request
from pathlib import Path
from typing import Any

import pytest

import lakehead
from bench.s3_server import S3Server
from lakehead.broker.observability.table_metrics import served_tables
from lakehead.lake.jobs.declared_tables import DeclaredTables, TableOutcome
from lakehead.lake.jobs.table_status import TableStatus, table_statuses
from lakehead.lake.store_reader import store_reader
from lakehead.storage.clock import SystemClock
from tests.support.command_line import CommandLine
from tests.support.declared_topics import configure
from tests.support.topic_writer import write_topic


@pytest.fixture
def command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def declare(root: Path, topic: str, **configs: str) -> None:
    named = {f"lakehead.table.{name.replace('_', '.')}": text for name, text in configs.items()}
    configure(root, topic, {"lakehead.table.enable": "true", **named})


def catch_up(root: Path) -> None:
    outcomes: list[TableOutcome] = []
    tables = DeclaredTables(f"file:{root}")
    try:
        tables.catch_up(all_of_them=True, on_table=outcomes.append)
    finally:
        tables.close()


def statuses(root: Path, **options: Any) -> dict[str, TableStatus]:
    catalog = store_reader(f"file:{root}").open_catalog()
    found = table_statuses(catalog, SystemClock().now_ms(), **options)
    return {status.topic: status for status in found}


def test_a_table_that_is_not_there_yet_is_behind_by_all(tmp_path: Path) -> None:
    write_topic(tmp_path, "t", {0: [b"x"] * 7})
    write_topic(tmp_path, "undeclared", {0: [b"x"]})
    declare(tmp_path, "t")
    (status,) = statuses(tmp_path).values()
    assert (status.records_behind, status.version, status.files, status.error) == (
        *(7, None, None),
        None,
    )
    assert status.bytes_behind > 0
    assert status.table == f"{tmp_path}/tables/t"


def test_a_table_that_is_kept_tells_its_lag_files_letters_and_cost(tmp_path: Path) -> None:
    write_topic(tmp_path, "t", {0: [b'{"a":1}', b"{", b'{"a":2}']})
    declare(tmp_path, "t", value_format="json", on_error="dead_letter", file_bytes=str(1 << 20))
    catch_up(tmp_path)
    status = statuses(tmp_path)["t"]
    assert (status.records_behind, status.bytes_behind, status.seconds_behind) == (0, 0, 0.0)
    assert (status.files, status.small_file_ratio, status.dead_letters) == (1, 1.0, 1)
    assert status.holder is None
    assert status.runs == 1
    assert status.bytes_read is not None
    assert status.bytes_read > 0
    assert status.bytes_written is not None
    assert status.bytes is not None
    assert status.bytes_written > status.bytes  # dead letters too
    assert status.store_requests is not None
    assert status.store_requests >= 2
    assert status.dollars is not None
    assert status.dollars > 0
    assert status.last_commit_ms is not None
    assert abs(status.last_commit_ms - SystemClock().now_ms()) < 600_000
    write_topic(tmp_path, "t", {0: [b'{"a":3}'] * 4})
    assert statuses(tmp_path)["t"].records_behind == 4


def test_what_is_wrong_with_a_table_is_in_its_row(tmp_path: Path) -> None:
    for topic in ("broken", "fine", "senseless"):
        write_topic(tmp_path, topic, {0: [b"x"] * 3})
        declare(tmp_path, topic)
    catch_up(tmp_path)
    (tmp_path / "tables/broken/_delta_log/00000000000000000000.json").write_text("junk")
    declare(tmp_path, "senseless", mode="sideways")
    found = statuses(tmp_path)
    assert found["fine"].error is None
    assert found["broken"].error is not None
    assert found["broken"].error.startswith(f"cannot read table {tmp_path}/tables/broken: ")
    assert "lakehead.table.mode is one of" in str(found["senseless"].error)
    assert {topic: one.records_behind for topic, one in found.items()} == dict.fromkeys(found, 0)


def test_a_place_that_does_not_answer_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")  # else it looks for some in the network
    write_topic(tmp_path, "t", {0: [b"x"] * 3})
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        place = f"s3://bucket/tables?endpoint=http://127.0.0.1:{silent.getsockname()[1]}"
        declare(tmp_path, "t", path=f"{place}&region=us-east-1")
        status = statuses(tmp_path, timeout_s=0.5)["t"]
    assert status.error == f"{status.table} does not respond"
    assert status.records_behind == 3


def test_the_command_shows_them(tmp_path: Path, command_line: CommandLine) -> None:
    write_topic(tmp_path, "t", {0: [b"x"] * 7})
    answer = command_line("tables", "--path", str(tmp_path))
    assert "no topic declares a table" in answer.out
    declare(tmp_path, "t", mode="sideways")
    shown = command_line("tables", "--path", str(tmp_path)).out
    assert "lakehead.table.mode is one of" in shown
    declare(tmp_path, "t", mode="append")
    catch_up(tmp_path)
    row = json.loads(command_line("tables", "t", "--json", "--path", str(tmp_path)).out)
    assert (row["topic"], row["records_behind"], row["files"]) == ("t", 0, 1)
    assert row["last_commit"].endswith("+00:00")


@pytest.mark.parametrize("command", ["materialize", "maintain"])
def test_metrics_are_of_what_goes_on(
    tmp_path: Path, command_line: CommandLine, command: str
) -> None:
    write_topic(tmp_path, "t", {0: [b"x"]})
    path = ("--path", str(tmp_path))
    assert "is for --follow" in command_line.fails(command, "--metrics", "0", *path)
    wrong = command_line.fails(command, "--follow", "--metrics", "page", *path)
    assert wrong == "--metrics wants PORT or HOST:PORT, not 'page'"


def test_prometheus_can_ask(tmp_path: Path) -> None:
    write_topic(tmp_path, "t", {0: [b"x"] * 7})
    declare(tmp_path, "t")
    with served_tables("0", lambda: list(statuses(tmp_path).values()), SystemClock()) as port:
        page = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    assert 'lakehead_table_lag_records{topic="t"} 7.0' in page
    assert 'lakehead_table_failed{topic="t"} 0.0' in page
    assert "lakehead_table_files{" not in page


def test_a_table_in_s3_tells_the_same(
    tmp_path: Path,
    s3_server: S3Server,
    command_line: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    profile = tmp_path / "credentials"
    profile.write_text(
        f"[default]\naws_access_key_id = {s3_server.access_key}\n"
        f"aws_secret_access_key = {s3_server.secret_key}\n"
    )
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(profile))
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    write_topic(tmp_path, "t", {0: [b'{"a":1}', b"{", b'{"a":2}']})
    place = f"{s3_server.uri}/tables/t?path_style=true"
    declare(tmp_path, "t", value_format="json", on_error="dead_letter", path=place)
    catch_up(tmp_path)
    write_topic(tmp_path, "t", {0: [b'{"a":3}']})
    (row,) = lakehead.catalog_tables(str(tmp_path)).tables.to_pylist()
    assert (row["table"], row["error"], row["records_behind"]) == (place, None, 1)
    assert (row["files"], row["small_file_ratio"], row["dead_letters"]) == (1, 1.0, 1)
    shown = json.loads(command_line("tables", "--path", str(tmp_path), "--json").out)
    assert {name: shown[name] for name in ("version", "files", "bytes", "dollars")} == {
        name: row[name] for name in ("version", "files", "bytes", "dollars")
    }
