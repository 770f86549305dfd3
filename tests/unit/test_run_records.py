"""Records of runs of jobs: other processes see their progress and their end."""

import asyncio
import json
import os
import random
import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

import pytest

from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import (
    CorruptObject,
    OutcomeUnknown,
    SettingsError,
    StoreUnavailable,
)
from lakehead.storage.jobs.job import run_inline
from lakehead.storage.jobs.run_record import (
    ABANDONED_MS,
    PREFIX,
    RUNS_MAX,
    Run,
    RunKey,
    RunRecords,
    RunState,
    newest_of,
    outdated,
)
from lakehead.storage.jobs.run_recorder import RunRecorder, recorded
from lakehead.storage.metadata.entry import entry_key
from lakehead.storage.object_store import FileStore
from lakehead.storage.object_store.protocol import Buffer, ObjectMeta, ObjectStore
from tests.support.waiting import wait_until

LIMIT_S = 30.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    asyncio.run(FileStore(tmp_path).create(entry_key(0), [b"{}"]))
    return tmp_path


def runs(folder: Path) -> list[Run]:
    return asyncio.run(RunRecords(FileStore(folder)).newest(RUNS_MAX, SystemClock().now_ms()))


def record(folder: Path, first_s: float = 0.0) -> AbstractContextManager[RunRecorder]:
    return recorded(
        lambda: FileStore(folder),
        "compact-topics",
        clock=SystemClock(),
        rng=random.Random(1),
        interval_s=0.01,
        first_s=first_s,
    )


def test_progress_is_seen_while_a_run_goes_on_and_its_end_after_it(folder: Path) -> None:
    with record(folder) as recorder:
        items = recorder.counting(run_inline)(str, ["a", "b", "c"])
        recorder.progress(100, 400)
        recorder.at("topic orders")
        assert next(items) == ("a", "a")
        assert wait_until(lambda: [one.done_bytes for one in runs(folder)] == [100], LIMIT_S)
        (run,) = runs(folder)
        assert (run.state, run.doing, run.share) == (RunState.RUNNING, "topic orders", 0.25)
        assert wait_until(lambda: runs(folder)[0].total_units == 3, LIMIT_S)
        list(items)
        recorder.found({"records removed": 7, "words": "", "lines": ["x"]})
    (run,) = runs(folder)
    assert (run.state, run.done_units, run.result) == (
        RunState.SUCCEEDED,
        3,
        {"records removed": 7},
    )
    assert len(list((folder / PREFIX).rglob("*.json"))) == 1, "records before the last are deleted"


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (SettingsError("no such\n topic"), "no such topic"),
        (KeyboardInterrupt(), "stopped"),
        (ValueError("x" * 5000), "ValueError: xxx"),
    ],
)
def test_the_reason_of_a_failure_is_one_line(
    folder: Path, error: BaseException, reason: str
) -> None:
    with pytest.raises(type(error)), record(folder):
        raise error
    (run,) = runs(folder)
    assert run.state is RunState.FAILED
    assert run.reason.startswith(reason)
    assert len(run.reason) <= 400


def test_short_work_leaves_a_record_only_if_it_fails(folder: Path) -> None:
    with record(folder, first_s=LIMIT_S):
        pass
    assert runs(folder) == []
    with record(folder, first_s=LIMIT_S) as recorder:
        recorder.failed("2 of 3 failed")
    assert [one.reason for one in runs(folder)] == ["2 of 3 failed"]


def test_a_run_goes_on_where_its_records_cannot_be_written(folder: Path) -> None:
    class Refusing(FileStore):
        async def create(self, key: str, pieces: object) -> None:
            raise StoreUnavailable("denied")

    def refusing() -> ObjectStore:
        return Refusing(folder)

    with recorded(refusing, "verify", clock=SystemClock(), rng=random.Random(1)):
        pass
    assert runs(folder) == []


def test_the_end_counts_where_the_response_to_the_record_before_was_lost(folder: Path) -> None:
    tried = threading.Event()

    class Losing(FileStore):
        async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
            await super().create(key, pieces)
            if not tried.is_set():
                tried.set()
                raise OutcomeUnknown("the response was lost")

    with recorded(lambda: Losing(folder), "verify", clock=SystemClock(), rng=random.Random(1)):
        assert tried.wait(LIMIT_S)
    assert [run.state for run in runs(folder)] == [RunState.SUCCEEDED]
    assert len(list((folder / PREFIX).rglob("*.json"))) == 1


def test_a_store_that_does_not_respond_holds_no_run_up(folder: Path) -> None:
    class Silent(FileStore):
        async def list(
            self, prefix: str, *, start_after: str = "", limit: int | None = None
        ) -> Sequence[ObjectMeta]:
            await asyncio.Event().wait()
            return ()

    clock = SystemClock()
    begun = clock.monotonic()
    with recorded(lambda: Silent(folder), "verify", clock=clock, rng=random.Random(1)):
        pass
    assert clock.monotonic() - begun < 5


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_an_unexpected_error_of_a_store_ends_records_and_nothing_else() -> None:
    def failing() -> ObjectStore:
        raise RuntimeError("a library fails")

    with recorded(failing, "verify", clock=SystemClock(), rng=random.Random(1)) as recorder:
        recorder.at("all of it")


def test_a_reason_with_a_name_that_is_not_utf_8_is_recorded(folder: Path) -> None:
    with pytest.raises(SettingsError), record(folder):
        raise SettingsError(os.fsdecode(b"no file \xff"))
    assert [one.reason for one in runs(folder)] == ["no file ?"]


def test_nothing_is_written_where_there_is_no_cluster(tmp_path: Path) -> None:
    place = tmp_path / "elsewhere"
    with record(place):
        pass
    assert not place.exists()


def test_a_run_whose_records_end_was_abandoned() -> None:
    run = Run(job="sweep", holder="h", started_ms=0, updated_ms=5)
    assert run.at(5 + ABANDONED_MS).state is RunState.RUNNING
    assert run.at(6 + ABANDONED_MS).state is RunState.ABANDONED
    ended = replace(run, state=RunState.FAILED)
    assert ended.at(10 * ABANDONED_MS).state is RunState.FAILED


def test_the_newest_runs_are_kept_with_their_last_records() -> None:
    objects = [
        ObjectMeta(key=RunKey(f"{run:013d}-{0:016x}", number).key, size=1, modified_ms=run + number)
        for run in range(RUNS_MAX + 5)
        for number in range(2)
    ]
    others = [
        ObjectMeta(key=key, size=1, modified_ms=1 << 40) for key in ("runs/README", "data/00/x")
    ]
    gone = outdated([*objects, *others])
    keys = [one.key for one in objects]
    assert len(gone) == len(keys) - RUNS_MAX
    assert set(keys[:10]) <= set(gone)
    assert next(iter(newest_of(objects).values())).key == keys[-1]
    assert not {"runs/README", "data/00/x"} & set(gone)


def test_a_run_that_began_long_ago_and_goes_on_is_kept_and_comes_first() -> None:
    """`backup --follow` runs for weeks, beside hundreds of runs of other jobs."""
    lasting = RunKey(f"{0:013d}-{0:016x}", 9000)
    last_ms = 10 * RUNS_MAX
    objects = [ObjectMeta(key=lasting.key, size=1, modified_ms=last_ms)] + [
        ObjectMeta(key=RunKey(f"{run:013d}-{0:016x}", 1).key, size=1, modified_ms=run)
        for run in range(1, 2 * RUNS_MAX)
    ]
    assert next(iter(newest_of(objects).values())) == lasting
    assert lasting.key not in outdated(objects)


def test_a_record_that_cannot_be_read_hides_no_other(folder: Path) -> None:
    with record(folder):
        pass
    good = json.loads(runs(folder)[0].body())
    bad = [
        b"{",
        b"[]",
        b'{"job": 1}',
        json.dumps(good | {"total_bytes": "x"}).encode(),
        json.dumps(good | {"result": []}).encode(),
        json.dumps(good | {"state": "asleep"}).encode(),
        json.dumps(good | {"started_ms": True}).encode(),
    ]
    for number, body in enumerate(bad):
        key = RunKey(f"{9_000_000_000_000 + number}-{0:016x}", 0).key
        asyncio.run(FileStore(folder).create(key, [body]))
        with pytest.raises(CorruptObject):
            Run.of("key", body)
    assert [one.job for one in runs(folder)] == ["compact-topics"]
    later = json.dumps(good | {"of_a_later_release": 1}).encode()
    assert Run.of("key", later).job == "compact-topics"
