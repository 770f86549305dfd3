"""Commands that follow stop in one way, and leave a record of their run."""

import asyncio
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakehead.storage.clock import SystemClock
from lakehead.storage.jobs.run_record import Run, RunRecords, RunState
from lakehead.storage.object_store import FileStore
from tests.support.command_line import CommandLine
from tests.support.template_process import ForkedPython, job_environment
from tests.support.topic_writer import write_topic
from tests.support.waiting import wait_until

LIMIT_S = 60


def runs(store: Path) -> list[Run]:
    return asyncio.run(RunRecords(FileStore(store)).newest(10, SystemClock().now_ms()))


@contextmanager
def following(folder: Path, *arguments: str) -> "Iterator[subprocess.Popen[str]]":
    command = [sys.executable, "-m", "lakehead", *arguments]
    with (folder / "out").open("w") as out, (folder / "err").open("w") as err:
        process = ForkedPython(
            command, jobs=True, text=True, stdout=out, stderr=err, env=job_environment()
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait(LIMIT_S)


def catches_term(process: "subprocess.Popen[str]") -> bool:
    """Return true once a process takes SIGTERM itself."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    (caught,) = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize(
    ("job", "arguments"),
    [
        ("backup", ("backup", "COPY", "--interval", "1000")),
        ("", ("maintain", "--no-lake")),
        ("materialize", ("materialize",)),
    ],
)
def test_the_first_signal_ends_a_command_in_order(
    tmp_path: Path, job: str, arguments: Sequence[str], number: signal.Signals
) -> None:
    store = tmp_path / "store"
    write_topic(store, "t", {0: [b"1"]})
    given = [str(tmp_path / "copy") if one == "COPY" else one for one in arguments]
    with following(tmp_path, *given, "--follow", "--path", str(tmp_path), "--json") as process:

        def has_begun() -> bool:
            assert process.poll() is None, (tmp_path / "err").read_text()
            has_shown = job != "backup" or bool((tmp_path / "out").read_text())
            return catches_term(process) and has_shown and (not job or bool(runs(store)))

        assert wait_until(has_begun, LIMIT_S)
        process.send_signal(number)
        assert process.wait(LIMIT_S) == 0
    (line,) = [one for one in (tmp_path / "err").read_text().splitlines() if ": ends" in one]
    assert line.startswith("lakehead: ends")
    assert line.endswith("; a second signal ends it at once")
    if job:
        assert [(one.job, one.state) for one in runs(store)] == [(job, RunState.SUCCEEDED)]
    else:  # one that was at work, if any
        assert {one.reason for one in runs(store)} <= {"stopped"}
    if job == "backup":
        assert runs(store)[0].result["backups"] == 1


def test_a_restore_and_a_rebuilt_catalog_leave_records_in_their_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lakehead = CommandLine(monkeypatch, capsys)
    write_topic(tmp_path / "store", "t", {0: [b"1"]})
    copy, new = tmp_path / "copy", tmp_path / "new"
    assert lakehead("backup", str(copy), "--path", str(tmp_path)).status == 0
    assert lakehead("restore", str(copy), str(new)).status == 0
    (run,) = runs(new)
    assert (run.job, run.state, run.share) == ("restore", RunState.SUCCEEDED, 1.0)
    assert run.result["topics"] == 1
    lakehead.fails("restore", str(copy), str(tmp_path / "store"))
    assert [one.job for one in runs(tmp_path / "store")] == ["backup"], (
        "of a wrong place there is none"
    )
    shutil.rmtree(new / "meta")
    assert lakehead("rebuild-catalog", "--path", str(new)).status == 0
    rebuilt = runs(new)[0]
    assert (rebuilt.job, rebuilt.state) == ("rebuild-catalog", RunState.SUCCEEDED)
