"""`lakehead compact-objects`: what it shows and does; and kill -9 at each of its fail-points."""

import json
import subprocess
from pathlib import Path

import pytest

import lakehead
from lakehead.storage.failpoints import KILLED
from tests.integration.test_compaction_crashes import in_log, leaks
from tests.integration.test_crashes import MERGE_ALONE
from tests.support.command_line import CommandLine
from tests.support.template_process import lakehead_command
from tests.support.topic_writer import write_topic

ENTRIES = tuple(
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("metadata_entry_planned", "metadata_entry_put")
)
"""Fail-points of every commit, which other tests come to."""
PLACES = (*sorted(MERGE_ALONE), *ENTRIES)
UPLOADS = 6


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    for number in range(UPLOADS):
        values = {p: [b"%d %d" % (number, n) for n in range(20)] for p in range(2)}
        write_topic(tmp_path / "store", "t", values, partitions=2, batch_records=3)
    return tmp_path


def rows(folder: Path) -> list[dict[str, object]]:
    return list(lakehead.scan(str(folder / "store"), "t").read_all().to_pylist())


def compact(folder: Path, *, failpoint: str = "") -> "subprocess.CompletedProcess[str]":
    command = ("compact-objects", "--path", str(folder), "--count", "3", "--json")
    return lakehead_command(*command, failpoint=failpoint)


def test_what_is_due_is_shown_and_done(
    cluster: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lakehead = CommandLine(monkeypatch, capsys)
    path = ("--path", str(cluster), "--count", "3", "--json")
    before = rows(cluster)
    shown = [
        json.loads(line)
        for line in lakehead("compact-objects", "--dry-run", *path).out.splitlines()
    ]
    assert [(one["topic"], one["partition"], one["objects"]) for one in shown] == [
        ("t", 0, UPLOADS),
        ("t", 1, UPLOADS),
    ]
    figures = json.loads(lakehead("compact-objects", *path).out)
    assert (figures["items"], figures["objects_after"]) == (2, 2)
    assert figures["batches_before"] == 2 * 7 * UPLOADS
    assert figures["batches_after"] == 2 * UPLOADS, "one for each epoch"
    assert rows(cluster) == before
    assert lakehead("compact-objects", "--dry-run", *path).out == ""
    assert "no cluster" in lakehead.fails("compact-objects", "--path", str(cluster / "elsewhere"))


@pytest.mark.parametrize("name", PLACES)
def test_killed_at_each_of_its_failpoints_it_is_finished_by_the_next(
    cluster: Path, name: str
) -> None:
    before = rows(cluster)
    assert compact(cluster, failpoint=name).returncode == KILLED
    assert rows(cluster) == before
    again = compact(cluster)
    assert again.returncode == 0, again.stderr
    assert rows(cluster) == before
    assert [len(one.extents) for one in in_log(cluster).streams.values()] == [1, 1]
    report = leaks(cluster)
    assert (report.missing, report.leaked, report.strange) == ((), (), ())
