"""kill -9 of the broker while producers run: after it, the log is exactly what they were told.

`CRASHES` sets how many random kills the campaign makes (`CRASHES=500` for a long one) and
`CRASH_SEED` when they fall.
"""

import os
import random
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from lakehead.storage.failpoints import KILLED
from tests.checker.history import History
from tests.checker.rules import violations
from tests.support.broker_process import HASTY, BrokerProcess
from tests.support.repetitions import repetitions
from tests.support.traffic import (
    IDEMPOTENT,
    PLAIN,
    ProducerThread,
    TailThread,
    create_topic,
    read_log,
)
from tests.support.waiting import wait_until

TOPIC = "crash"
PARTITIONS = 4
CRASHES = int(os.environ.get("CRASHES", repetitions(4, 2)))
SEED = int(os.environ.get("CRASH_SEED", "1"))
BLOCK_WAL = ()
OBJECT_WAL = ("--wal", "object:")
OBJECT_WAL_ALONE = {"wal_object_put", "wal_objects_committed", "wal_sealed"}
"""Fail-points that no other log comes to."""
MANY_ENTRIES = ("--upload.age.ms", "50")
NEED_MANY_ENTRIES = {"checkpoint_put", "boundary_put", "boundaries_deleted"}
"""Fail-points that are come to once in so many entries of the metadata log."""
SWEEP_ALONE = {"garbage_deleted", "garbage_dropped"}
"""Fail-points that only a sweep comes to: test_sweep_crashes."""
MAINTENANCE_ALONE = {"compaction_objects_written", "compaction_committed"}
"""Fail-points that only maintenance comes to: test_compaction_crashes."""
MERGE_ALONE = {"compact_objects_written", "compact_committed"}
"""Fail-points that only merging small objects comes to: test_merge_crashes."""
FORGET_ALONE = {"forget_objects_written", "forget_step_noted", "forget_committed"}
"""Fail-points that only forgetting keys comes to: test_forget."""
REBUILD_ALONE = {"rebuild_bridged", "rebuild_copied", "rebuild_published"}
"""Fail-points that only rebuilding the catalog comes to: test_rebuild_crashes."""
BACKUP_ALONE = {
    "backup_manifest_deleted",
    "backup_manifest_put",
    "backup_object_put",
    "backup_objects_copied",
    "backup_state_put",
    "restore_corrected",
    "restore_objects_copied",
    "restore_published",
}
"""Fail-points that only backups and restores come to: test_backup."""
PROMOTION_ALONE = {
    "promotion_closed",
    "promotion_corrected",
    "promotion_decided",
    "promotion_published",
    "promotion_sealed",
    "promotion_state_put",
}
"""Fail-points that only promotions of a copy come to: test_promotion."""
IMPORT_ALONE = {
    "import_access_made",
    "import_begun",
    "import_positions_uploaded",
    "import_records_appended",
    "import_topics_made",
    "import_topics_uploaded",
}
"""Fail-points that only imports come to: test_kafka_import."""
CLUSTER_ALONE = {
    *("hand_over_stopped", "left_log_opened", "left_log_committed"),
    *("tail_found", "tail_inherited", "tail_uploaded", "tail_committed"),
}
"""Fail-points that a node alone never comes to: test_takeover_processes."""
SHARE_GROUPS_ALONE = {"dead_letters_begun", "dead_letters_written"}
"""Fail-points that only share groups come to: test_share_letter_kills."""
AT_FIRST_START = (
    *("log_begun", "metadata_entry_planned", "metadata_entry_put", "node_registered"),
    *("wal_file_reserved", "wal_header_written", "wal_objects_committed", "wal_sealed"),
)
"""Fail-points that the first start of a cluster comes to."""
FIRST_START_ALONE = {"wal_file_reserved"}
TRIES = 4
"""A kill leaves something to recover or not, by the moment."""
CHAIN = 5
ROOT = Path(__file__).resolve().parents[2]


def failpoints() -> list[str]:
    """The names of all fail-points that a broker at work comes to."""
    found: set[str] = set()
    for package in ("storage", "broker"):
        for source in (ROOT / package).rglob("*.py"):
            if source.name != "failpoints.py":
                found.update(re.findall(r'\bfailpoint\("(\w+)"\)', source.read_text()))
    alone = SWEEP_ALONE | MAINTENANCE_ALONE | MERGE_ALONE | REBUILD_ALONE | CLUSTER_ALONE
    alone |= SHARE_GROUPS_ALONE | FORGET_ALONE | BACKUP_ALONE | PROMOTION_ALONE | IMPORT_ALONE
    return sorted(found - alone)


def flags_of(name: str) -> Sequence[str]:
    """The flags with which a broker comes to the fail-point."""
    if name in NEED_MANY_ENTRIES:
        return MANY_ENTRIES
    return OBJECT_WAL if name in OBJECT_WAL_ALONE else BLOCK_WAL


def chains() -> list[tuple[Sequence[str], Sequence[str]]]:
    """Return flags and fail-points that one broker comes to with them, a few at a time: several
    share what a broker and its clients cost at the start.
    """
    by_flags: dict[Sequence[str], list[str]] = {}
    for name in sorted(set(failpoints()) - FIRST_START_ALONE):
        by_flags.setdefault(flags_of(name), []).append(name)
    return [
        (flags, names[start : start + CHAIN])
        for flags, names in by_flags.items()
        for start in range(0, len(names), CHAIN)
    ]


def alternately(cases: Sequence[Any]) -> list[Any]:
    """Return parameters of tests of which every second one is slow."""
    slow = pytest.mark.slow
    return [
        pytest.param(*(one if isinstance(one, tuple) else (one,)), marks=slow if n % 2 else ())
        for n, one in enumerate(cases)
    ]


class Campaign:
    """A broker with two producers and a consumer on it, and the history they write."""

    def __init__(self, folder: Path, flags: Sequence[str]) -> None:
        self.history = History()
        self.broker = BrokerProcess(folder, (*HASTY, *flags))
        self.producers: list[ProducerThread] = []
        self._tail: TailThread | None = None

    def start_clients(self) -> None:
        """Create the topic and start producing and consuming; the broker must be running."""
        bootstrap = self.broker.bootstrap
        create_topic(bootstrap, TOPIC, PARTITIONS)
        for name, config in (("idempotent", IDEMPOTENT), ("plain", PLAIN)):
            producer = ProducerThread(
                name,
                bootstrap,
                TOPIC,
                partitions=PARTITIONS,
                history=self.history,
                config=config,
            )
            self.producers.append(producer)
            producer.start()
        self._tail = TailThread(bootstrap, TOPIC, partitions=PARTITIONS, history=self.history)
        self._tail.start()

    def wait_progress(self, records: int = 1, deadline_s: float = 60.0) -> None:
        """Wait until each producer has `records` more acknowledged; a heal must bring progress."""
        marks = {producer: producer.acknowledged + records for producer in self.producers}
        assert wait_until(
            lambda: all(producer.acknowledged >= mark for producer, mark in marks.items()),
            deadline_s,
        ), f"producers are stuck: {self.history.contradictions}\n{self.broker.log}"

    def check(self) -> dict[int, list[tuple[int, bytes]]]:
        """Stop the clients and read everything: it must be what they were told."""
        unanswered = {producer.name: producer.finish() for producer in self.producers}
        assert not any(unanswered.values()), f"without an answer: {unanswered}"
        assert self._tail is not None
        self._tail.finish()
        self.producers = []
        self._tail = None
        log = read_log(self.broker.bootstrap, TOPIC, PARTITIONS)
        assert violations(self.history, log)[:20] == []
        return log

    def close(self) -> None:
        """End whatever still runs."""
        self.broker.kill()
        for producer in self.producers:
            producer.finish(0)
        if self._tail is not None:
            self._tail.finish()


@contextmanager
def campaign(folder: Path, flags: Sequence[str] = ()) -> Iterator[Campaign]:
    running = Campaign(folder, flags)
    try:
        yield running
    finally:
        running.close()


@pytest.mark.timeout(max(180, CRASHES * 8))
@pytest.mark.parametrize(
    ("flags", "crashes"),
    [
        (BLOCK_WAL, CRASHES),
        pytest.param(OBJECT_WAL, (CRASHES + 1) // 2, marks=pytest.mark.slow),
    ],
)
def test_random_kills_lose_double_and_move_nothing(
    tmp_path: Path, flags: Sequence[str], crashes: int
) -> None:
    rng = random.Random(SEED)
    with campaign(tmp_path, flags) as running:
        running.broker.start()
        running.start_clients()
        for _ in range(crashes):
            running.wait_progress()
            time.sleep(rng.uniform(0.0, 0.5))  # the moment of the kill is the random part
            running.broker.kill()
            running.broker.start()
        running.wait_progress(100)
        log = running.check()
        assert len(running.history.acknowledged) > crashes * 10
        assert running.broker.stop() == 0, running.broker.log
        running.broker.start()
        assert read_log(running.broker.bootstrap, TOPIC, PARTITIONS) == log


def test_there_are_failpoints() -> None:
    assert len(failpoints()) >= 8


@pytest.mark.parametrize("name", alternately(AT_FIRST_START))
def test_a_cluster_that_dies_while_it_is_made_is_made_by_the_next_start(
    tmp_path: Path, name: str
) -> None:
    with campaign(tmp_path, flags_of(name)) as running:
        assert die_while_starting(running, name), f"{name} was not reached"
        running.broker.start()
        create_topic(running.broker.bootstrap, TOPIC, PARTITIONS)
        log = read_log(running.broker.bootstrap, TOPIC, PARTITIONS)
        assert log == {partition: [] for partition in range(PARTITIONS)}


@pytest.mark.parametrize(("flags", "names"), alternately(chains()))
def test_kills_at_every_failpoint_one_after_the_other(
    tmp_path: Path, flags: Sequence[str], names: Sequence[str]
) -> None:
    """Die at each place while recovering from the kill before it, at work, or stopping."""
    with campaign(tmp_path, flags) as running:
        running.broker.start()
        running.start_clients()
        for name in names:
            assert any(die_at(running, name) for _ in range(TRIES)), f"{name} was not reached"
        running.broker.start()
        running.wait_progress(100)
        running.check()


def die_at(running: Campaign, name: str) -> bool:
    """Kill the broker if it runs, then run it towards the fail-point: whether that ended it."""
    if running.broker.is_running:
        running.wait_progress(100)
        running.broker.kill()
    if die_while_starting(running, name) or die_at_work(running):
        return True
    if running.broker.stop() == KILLED:
        return True
    running.broker.start()
    return False


def die_while_starting(running: Campaign, name: str) -> bool:
    """Start the broker with the fail-point armed: whether that ended it."""
    running.broker.start_towards_failpoint(name)
    return running.broker.exit_status == KILLED


def die_at_work(running: Campaign) -> bool:
    """Run on under load for several uploads: whether the armed fail-point ended the broker."""
    return (
        wait_until(lambda: not running.broker.is_running, 2.0)
        and running.broker.exit_status == KILLED
    )
