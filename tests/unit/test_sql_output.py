"""Rows of a query at a terminal."""

import os
import pty
import re
from contextlib import suppress

import pytest

from lakehead.lake.sql.shell import write_rows


def at_terminal(monkeypatch: pytest.MonkeyPatch, names: list[str], rows: list[list[object]]) -> str:
    """What a terminal of 40 columns shows."""
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("TERM", "xterm")
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as out:
        write_rows(names, rows, "table", out)
    shown = b""
    with suppress(OSError):  # a terminal that nobody has open any more ends so
        while more := os.read(master, 1 << 16):
            shown += more
    os.close(master)
    return re.sub(r"\x1b\[[0-9;]*m|\r", "", shown.decode())


def test_a_row_of_more_columns_than_fit_is_a_line_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"a_long_name_{n}" for n in range(4)]
    shown = at_terminal(monkeypatch, names, [[1, None, "x", b"\xff"], [2, "y" * 50, "", 1.5]])
    first, second = shown.split("row 2\n")
    assert [line.split() for line in first.splitlines()] == [
        ["row", "1"],
        *([name, value] for name, value in zip(names, ["1", "NULL", "x", "ff"], strict=True)),
    ]
    assert "y" * 20 in second
    assert second.rstrip().endswith("2 rows")


def test_what_fits_is_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = at_terminal(monkeypatch, ["id", "name"], [[1, "a" * 60]])
    assert shown.split()[:2] == ["id", "name"]
    assert shown.count("a") >= 60
