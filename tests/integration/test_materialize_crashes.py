"""Killing `materialize` anywhere, and running it twice at once, leave each record once.

Real processes, killed by signal 9 at every fail-point the job passes and at random moments. The
topic has records that cannot be read, so that both of its tables are committed to.
"""

import contextlib
import json
import os
import random
import re
import signal
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from deltalake import DeltaTable

from lakehead.lake.jobs.materialize import materialize
from lakehead.lake.jobs.table_settings import MaterializeSettings
from lakehead.storage.failpoints import KILLED
from tests.support.materialize_process import finish, start
from tests.support.template_process import ROOT
from tests.support.topic_writer import write_topic

PARTITIONS = 3
RECORDS = 120
BAD_EVERY = 17
KILLS = int(os.environ.get("JOB_KILLS", "4"))
ROUNDS = 2

LOST = {"materialize_lost_race", "backfill_lost_race", "replay_begins_again"}
"""Passed only by one of two."""


def all_fail_points() -> set[str]:
    """Names of the places in jobs and tables where a test may kill."""
    sources = [*(ROOT / "lake" / "jobs").glob("*.py"), *(ROOT / "lake" / "tables").glob("*.py")]
    return {
        name
        for source in sources
        for name in re.findall(r'failpoint\("(\w+)"\)', source.read_text())
    }


def fail_points() -> list[str]:
    """Those that a run over an append table passes whose schema stays. Deletion vectors are for
    upserts, and their commits write checkpoints of their own: `test_vector_tables`.
    """
    found = {name for name in all_fail_points() if name.startswith(("materialize_", "table_"))}
    of_others = {"table_columns_added", "table_vectors_set", "table_checkpointed"}
    return sorted(found - LOST - of_others)


def value(number: int) -> bytes:
    return b"{" if number % BAD_EVERY == 0 else json.dumps({"id": number}).encode()


def write(root: Path, start_offset: int) -> None:
    numbers = range(start_offset, start_offset + RECORDS)
    values = {p: [value(n) for n in numbers] for p in range(PARTITIONS)}
    write_topic(root, "orders", values, partitions=PARTITIONS, batch_records=10)


def places(table: str) -> Counter[tuple[int, int]]:
    if not DeltaTable.is_deltatable(table):
        return Counter()
    held = DeltaTable(table).to_pyarrow_table(columns=["_partition", "_offset"]).to_pydict()
    return Counter(zip(held["_partition"], held["_offset"], strict=True))


def check(settings: MaterializeSettings, records: int) -> None:
    """Both tables hold exactly what they should of the first `records` of each partition."""
    everything = [(p, n) for p in range(PARTITIONS) for n in range(records)]
    good = Counter(place for place in everything if place[1] % BAD_EVERY)
    assert places(settings.table) == good
    assert places(settings.dead_letters) == Counter(everything) - good


@pytest.fixture
def settings(tmp_path: Path) -> MaterializeSettings:
    write(tmp_path / "cluster", 0)
    return MaterializeSettings(
        path=str(tmp_path / "cluster"),
        topic="orders",
        table=str(tmp_path / "table"),
        on_error="dead_letter",
        workers=1,
        split_bytes=2000,
        commit_bytes=4000,
    )


def test_each_fail_point_of_the_other_jobs_has_a_test_that_kills_there() -> None:
    jobs = ("backfill_", "rebuild_", "replay_", "delta_log_")
    found = {name for name in all_fail_points() if name.startswith(jobs)} - LOST
    texts = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    assert found
    assert {name for name in found if not any(f'"{name}"' in text for text in texts)} == set()


@pytest.mark.parametrize("name", fail_points())
def test_killed_at_a_fail_point(settings: MaterializeSettings, tmp_path: Path, name: str) -> None:
    """Once with no table yet, then on the second visit, over a table that has something."""
    assert finish(start(settings, failpoint=name))[0] == KILLED
    if name != "materialize_planned":
        materialize(settings)
        check(settings, RECORDS)
    write(tmp_path / "cluster", RECORDS)
    status, _, _ = finish(start(settings, failpoint=f"{name}:2"))
    assert status == KILLED or name == "materialize_table_created"
    materialize(settings)
    check(settings, 2 * RECORDS)


@pytest.mark.slow
def test_killed_at_random_moments(settings: MaterializeSettings, tmp_path: Path) -> None:
    rng = random.Random(3)
    written = RECORDS
    kills = 0
    for _ in range(KILLS):
        process = start(settings)
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=rng.uniform(0, 1))
        process.send_signal(signal.SIGKILL)
        status, _, _ = finish(process)
        kills += status == -signal.SIGKILL
        write(tmp_path / "cluster", written)
        written += RECORDS
    assert kills
    materialize(settings)
    check(settings, written)


def test_killed_while_two_work(settings: MaterializeSettings) -> None:
    apart = replace(settings, workers=2)
    assert finish(start(apart, failpoint="materialize_file_written:2"))[0] == KILLED
    assert places(apart.table) == Counter()
    materialize(apart)
    check(settings, RECORDS)


@pytest.mark.slow
def test_several_at_once_and_again_while_the_topic_grows(
    settings: MaterializeSettings, tmp_path: Path
) -> None:
    committed = 0
    for number in range(ROUNDS):
        running = [start(settings) for _ in range(3)]
        ended = [finish(process) for process in running]
        assert [status for status, _, _ in ended] == [0] * 3, ended
        committed += sum(json.loads(out.splitlines()[-1])["records"] for _, out, _ in ended)
        check(settings, (number + 1) * RECORDS)
        write(tmp_path / "cluster", (number + 1) * RECORDS)
    good = sum(1 for n in range(ROUNDS * RECORDS) if n % BAD_EVERY)
    assert committed == PARTITIONS * good
