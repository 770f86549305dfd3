"""What a user is told of input that is no good: topic, partition, offset, and what to do."""

import socket
from pathlib import Path

import pytest
from deltalake import DeltaTable, write_deltalake

from tests.support.command_line import CommandLine
from tests.support.declared_topics import configure
from tests.support.schema_registry import serve_schemas
from tests.support.topic_writer import write_topic
from tests.support.waiting import wait_until


@pytest.fixture
def lakehead(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> CommandLine:
    return CommandLine(monkeypatch, capsys)


def declared(folder: Path, values: list[bytes | None], **configs: str) -> tuple[str, ...]:
    """Topic `t` with these values, and how it is materialized."""
    write_topic(folder / "store", "t", {0: values})
    named = {f"lakehead.table.{name.replace('_', '.')}": text for name, text in configs.items()}
    configure(folder / "store", "t", {"lakehead.table.enable": "true", **named})
    return ("materialize", "t", "--path", str(folder))


def test_schema_ids_that_the_registry_does_not_know(lakehead: CommandLine, tmp_path: Path) -> None:
    with serve_schemas() as (url, _):
        values = [None, b"\0\0\0\0\7abc"]
        command = declared(tmp_path, values, value_format="avro", schema_registry_url=url)
        told = lakehead.fails(*command)
    assert told.startswith("topic t: none of the sampled values names a schema")
    assert "(the one at partition 0, offset 1 names 7): register it, or declare" in told
    unframed = declared(tmp_path / "other", [b"x"], value_format="avro", schema_registry_url=url)
    assert "nor is any in Confluent's wire format" in lakehead.fails(*unframed)


def test_values_that_are_no_json_name_the_format_that_keeps_them(
    lakehead: CommandLine, tmp_path: Path
) -> None:
    write_topic(tmp_path / "store", "t", {0: [b"text", b"\xff"]})
    table = str(tmp_path / "table")
    command = ("materialize", "t", "--path", str(tmp_path), "--table", table)
    assert "--value-format raw" in lakehead.fails(*command)
    lakehead(*command, "--value-format", "raw")
    assert DeltaTable(table).to_pyarrow_table().num_rows == 2


def test_a_registry_that_is_down(lakehead: CommandLine, tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        values = [b"\0\0\0\0\7abc"]
        command = declared(tmp_path, list(values), value_format="avro", schema_registry_url=url)
        told = lakehead.fails(*command)
    assert told.startswith(f"topic t: schema registry {url}: request failed: ")
    assert told.endswith(
        "nothing is lost, try again when it responds (lakehead.table.schema.registry.url)"
    )


def test_a_value_that_cannot_be_a_row_is_named_as_the_reason_of_its_table(
    lakehead: CommandLine, tmp_path: Path
) -> None:
    schema = {"value_format": "json", "schema": "x bigint"}
    command = declared(tmp_path, [b'{"x":1}', b'{"x":"text"}'], **schema)
    told = lakehead.fails(*command)
    assert told.startswith("topic t, partition 0, offset 1: field x: text that is not BIGINT. ")
    assert "lakehead.table.on.error" in told
    assert (
        "topic t, partition 0, offset 1: field x: text that is not BIGINT"
        in lakehead("tables", "--path", str(tmp_path)).out
    )


def test_a_table_that_nothing_brings_up_is_late(lakehead: CommandLine, tmp_path: Path) -> None:
    declared(tmp_path, [b"x"], freshness_ms="1000")
    late = "late: 1 s are declared, and no process keeps it: run: lakehead materialize t"
    path = ("--path", str(tmp_path))
    assert wait_until(lambda: late in lakehead("tables", *path).out, 30)


def test_an_object_that_is_gone(lakehead: CommandLine, tmp_path: Path) -> None:
    command = declared(tmp_path, [b"x", b"y"])
    (gone,) = (one for one in (tmp_path / "store" / "data").rglob("*") if one.is_file())
    gone.unlink()
    told = lakehead.fails(*command)
    assert told.startswith("topic t: offsets 0 to 1 of t-0 are lost: object data/")
    assert "put it back (lakehead verify names all that is missing)" in told


def test_a_table_that_somebody_else_has_changed(lakehead: CommandLine, tmp_path: Path) -> None:
    command = declared(tmp_path, [b"x"])
    assert lakehead(*command).status == 0
    table = str(tmp_path / "tables" / "t")
    held = DeltaTable(table).to_pyarrow_table().drop_columns(["_offset"])
    write_deltalake(table, held, mode="overwrite", schema_mode="overwrite")
    write_topic(tmp_path / "store", "t", {0: [b"y"]})
    told = lakehead.fails(*command)
    assert told.startswith(f"topic t: {table} is a table, but not one that was made from a topic: ")
    assert "lakehead.table.path" in told
