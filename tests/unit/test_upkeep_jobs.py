"""The jobs `retain`, `compact-topic` and `sweep`: what they plan, do, and leave to others."""

import asyncio
import pickle
import random
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import pytest
from structlog.testing import capture_logs

import lakehead
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import SettingsError, UnknownTopic
from lakehead.storage.jobs.apply_retention import JOB as RETAIN
from lakehead.storage.jobs.apply_retention import (
    RetentionItem,
    RetentionOptions,
    RetentionResult,
    retention_item,
)
from lakehead.storage.jobs.apply_retention import items_of as retain_items
from lakehead.storage.jobs.compact_objects import JOB as COMPACT
from lakehead.storage.jobs.compact_objects import CompactObjectsOptions
from lakehead.storage.jobs.compact_topics import JOB as COMPACT_TOPICS
from lakehead.storage.jobs.compact_topics import (
    CompactTopicsItem,
    CompactTopicsOptions,
    CompactTopicsResult,
    compact_topics_item,
)
from lakehead.storage.jobs.compact_topics import items_of as compact_topics_items
from lakehead.storage.jobs.job import OpenCluster, plan_job, run_job
from lakehead.storage.jobs.options import BrokerDefaults
from lakehead.storage.jobs.sweep import JOB as SWEEP
from lakehead.storage.jobs.sweep import SweepOptions, SweepResult, find_leaks, sweep_item
from lakehead.storage.jobs.sweep import items_of as sweep_items
from lakehead.storage.maintenance.configs import (
    ALL_BROKERS,
    CLEANER_MEMORY,
    MaintenanceDefaults,
)
from lakehead.storage.maintenance.rules import due_in
from lakehead.storage.metadata.log import MetadataLog
from lakehead.storage.metadata.records import BrokerConfig, Record, TopicConfig
from lakehead.storage.metadata.state import MetadataImage
from lakehead.storage.object_store import FileStore
from tests.support.record_batches import TestRecord
from tests.support.topic_writer import write_topic

T = TypeVar("T")
Item = TypeVar("Item")
RECORDS, KEYS = 40, 4
AT_ONCE = SweepOptions(grace_s=0, margin_s=0)


def commit(path: str, *records: Record) -> MetadataImage:
    async def put() -> MetadataImage:
        store = FileStore(Path(path))
        rng = random.Random(1)
        log = await MetadataLog.open(store, writer_id="t", clock=SystemClock(), rng=rng)
        return await log.commit(records) if records else log.state

    return asyncio.run(put())


def configure(path: str, topic: str, **configs: str) -> None:
    named: dict[str, str | None] = {name.replace("_", "."): v for name, v in configs.items()}
    commit(path, TopicConfig(topic_id=commit(path).topics[topic].topic_id, configs=named))


def rows(path: str, topic: str) -> list[tuple[int, bytes]]:
    return [
        (one["offset"], one["key"]) for one in lakehead.scan(path, topic).read_all().to_pylist()
    ]


def starts(path: str, topic: str) -> list[int]:
    state = commit(path)
    return [state.streams[one].start_offset for one in state.topics[topic].partitions]


def at_once(work: Callable[[], T]) -> list[T]:
    """What two runs give that begin together."""
    with ThreadPoolExecutor(2) as pool:
        return [one.result() for one in [pool.submit(work), pool.submit(work)]]


def as_sent(work: Callable[[Item], T], items: Sequence[Item]) -> Iterator[tuple[Item, T]]:
    """A runner that gives and takes what processes of a pool could be given."""
    for item in items:
        there, what = pickle.loads(pickle.dumps((work, item)))
        yield item, pickle.loads(pickle.dumps(there(what)))


def retain_plan(path: str) -> tuple[RetentionItem, ...]:
    return retain_items(path, RetentionOptions(), plan_job(RETAIN, path).units)


def topics_plan(path: str) -> tuple[CompactTopicsItem, ...]:
    units = plan_job(COMPACT_TOPICS, path).units
    return compact_topics_items(path, CompactTopicsOptions(), units)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """Topics `a` and `b`, with two partitions of three objects each."""
    values = [
        TestRecord(offset=0, timestamp=1000, key=b"k%d" % (n % KEYS), value=b"v" * 20)
        for n in range(RECORDS)
    ]
    for topic in ("a", "b"):
        for _ in range(3):
            write_topic(tmp_path, topic, {0: values, 1: values}, partitions=2, object_size=1)
    return str(tmp_path)


def test_retention_takes_what_is_over_once(path: str) -> None:
    configure(path, "b", retention_ms="-1")
    (item,) = retain_plan(path)
    assert [(one.topic, one.partition, one.offset) for one in item.works] == [
        ("a", 0, 3 * RECORDS),
        ("a", 1, 3 * RECORDS),
    ]
    told: list[tuple[int, int]] = []
    figures = run_job(RETAIN, path, on_progress=lambda *done: told.append(done))
    assert (figures.partitions, figures.records, figures.objects) == (2, 6 * RECORDS, 6)
    assert figures.bytes == item.size > 0
    assert told == [(0, item.size), (item.size, item.size)]
    assert (rows(path, "a"), len(rows(path, "b"))) == ([], 6 * RECORDS)
    assert run_job(RETAIN, path) == RetentionResult()
    assert retention_item(item) == ()  # a second run of the same plan


def test_retention_says_what_it_removes_that_a_table_lacks(path: str) -> None:
    configure(path, "b", retention_ms="-1")
    configure(path, "a", lakehead_table_enable="true", retention_ms="1")
    assert retain_plan(path) == ()
    configure(path, "a", lakehead_table_retention_wait_ms="1")
    with capture_logs() as events:
        figures = run_job(RETAIN, path)
    assert (figures.records, figures.missed) == (6 * RECORDS, 6 * RECORDS)
    assert figures.labelled()["records that a table lacks"] == 6 * RECORDS
    warnings = [(one["topic"], one["partition"], one["start"], one["records"]) for one in events]
    assert warnings == [("a", 0, 3 * RECORDS, 3 * RECORDS), ("a", 1, 3 * RECORDS, 3 * RECORDS)]
    assert {(one["event"], one["log_level"]) for one in events} == {
        ("retention_overtook_table", "warning")
    }


def test_defaults_count_where_a_topic_says_nothing(path: str) -> None:
    def due(topics: tuple[str, ...] = (), **given: str) -> list[tuple[str, int]]:
        named = {name.replace("_", "."): value for name, value in given.items()}
        options = RetentionOptions(topics=topics, defaults=BrokerDefaults(given=named))
        planned = plan_job(RETAIN, path, options)
        return [(unit.item.topic, unit.item.offset) for unit in planned.units]

    assert len(due()) == 4
    assert due(log_retention_ms="-1") == []
    assert due(("b",)) == [("b", 3 * RECORDS)] * 2
    configure(path, "a", retention_bytes="1", retention_ms="-1")
    assert due(log_retention_ms="-1") == [("a", 2 * RECORDS)] * 2
    shared = BrokerConfig(node_id=ALL_BROKERS, configs={"log.retention.ms": "1"})
    commit(path, shared)
    assert len(due(log_retention_ms="-1")) == 4
    with pytest.raises(UnknownTopic, match="'nope' does not exist"):
        due(("nope",))
    with pytest.raises(SettingsError, match=r"retention\.ms is not a broker default; known: log"):
        due(retention_ms="1")
    with pytest.raises(SettingsError, match=r"log\.retention\.ms: 'a week' is not a number"):
        due(log_retention_ms="a week")
    compacted = BrokerDefaults(given={"log.cleanup.policy": "compact"})
    assert plan_job(COMPACT, path, CompactObjectsOptions(defaults=compacted)).units == ()


def test_an_item_does_not_do_what_is_not_due_any_more(path: str) -> None:
    (item,) = pickle.loads(pickle.dumps(retain_plan(path)))
    configure(path, "a", lakehead_table_enable="true")  # whose table holds nothing yet
    configure(path, "b", retention_bytes="1", retention_ms="-1")
    assert [(one.topic, one.start_offset) for one in retention_item(item)] == [
        ("b", 2 * RECORDS),
        ("b", 2 * RECORDS),
    ]
    assert starts(path, "a") == [0, 0]


def test_two_runs_of_retention_at_once_count_each_record_once(path: str) -> None:
    first, second = at_once(lambda: run_job(RETAIN, path))
    both = first.plus(second)
    assert (both.partitions, both.records, both.failures) == (4, 12 * RECORDS, ())
    assert starts(path, "a") == starts(path, "b") == [3 * RECORDS] * 2


def test_compaction_keeps_the_newest_of_each_key_by_partition(path: str) -> None:
    configure(path, "a", cleanup_policy="compact")
    items = topics_plan(path)
    assert [(one.work.topic, one.work.partition) for one in items] == [("a", 0), ("a", 1)]
    assert plan_job(COMPACT_TOPICS, path, CompactTopicsOptions(topics=("b",))).units == ()
    figures = run_job(COMPACT_TOPICS, path)
    assert (figures.partitions, figures.failures) == (2, ())
    assert figures.bytes_before == sum(one.size for one in items) > figures.bytes_after > 0
    newest = [(3 * RECORDS - KEYS + n, b"k%d" % n) for n in range(KEYS)]
    assert rows(path, "a") == [*newest, *newest]
    assert run_job(COMPACT_TOPICS, path) == CompactTopicsResult()
    again = pickle.loads(pickle.dumps(items[0]))
    assert compact_topics_item(again).superseded == 1


def test_two_compactions_at_once_leave_what_one_leaves(path: str) -> None:
    configure(path, "a", cleanup_policy="compact")
    items = topics_plan(path)

    def work() -> CompactTopicsResult:
        figures = CompactTopicsResult()
        for item in items:
            figures = figures.plus(compact_topics_item(item))
        return figures

    first, second = at_once(work)
    both = first.plus(second)
    assert both.partitions + both.superseded == 4
    assert both.bytes_before <= sum(one.size for one in items)
    assert len(rows(path, "a")) == 2 * KEYS
    run_job(SWEEP, path, AT_ONCE)
    report = find_leaks(path)
    assert (report.missing, report.strange) == ((), ())


def test_a_partition_that_cannot_be_compacted_does_not_stop_the_others(path: str) -> None:
    configure(path, "a", cleanup_policy="compact")
    state = commit(path)
    lost = state.streams[state.topics["a"].partitions[0]].extents[1].object_key
    (Path(path) / lost).unlink()
    figures = run_job(COMPACT_TOPICS, path, runner=as_sent)
    assert (figures.partitions, len(figures.failures)) == (1, 1)
    assert figures.failures[0].startswith("a-0: ")
    assert lost in figures.failures[0]


async def test_maintenance_compacts_no_topic_whose_policy_has_changed_since_the_plan(
    path: str,
) -> None:
    """A turn of the loop may take hours, and removed records do not come back."""
    await asyncio.to_thread(configure, path, "a", cleanup_policy="compact")
    before = await asyncio.to_thread(rows, path, "a")
    part = COMPACT_TOPICS.maintenance
    assert part is not None
    store, clock, rng = FileStore(Path(path)), SystemClock(), random.Random(2)
    log = await MetadataLog.open(store, writer_id="m", clock=clock, rng=rng)
    defaults = MaintenanceDefaults()
    cluster = OpenCluster(store=store, metadata=log, clock=clock, rng=rng, defaults=defaults)
    works = list(due_in(log.state, defaults.values(log.state), clock.now_ms(), {"a"}))
    first, second = part.due(cluster, works)
    assert part.result(await part.run(cluster, first.item)).partitions == 1
    await asyncio.to_thread(configure, path, "a", cleanup_policy="delete", retention_ms="-1")
    assert part.result(await part.run(cluster, second.item)).superseded == 1
    after = await asyncio.to_thread(rows, path, "a")
    assert len(after) == len(before) // 2 + KEYS


def test_an_object_that_cannot_be_merged_does_not_stop_the_others(path: str) -> None:
    state = commit(path)
    streams = [state.streams[one] for one in state.topics["a"].partitions]
    lost = streams[0].extents[1].object_key
    (Path(path) / lost).unlink()
    before = [len(one.extents) for one in streams]
    figures = run_job(COMPACT, path, CompactObjectsOptions(count_min=2), runner=as_sent)
    assert figures.items
    assert len(figures.failures) == 1
    assert lost in figures.failures[0]
    after = [len(commit(path).streams[one.stream_id].extents) for one in streams]
    assert after[0] == before[0]
    assert after[1] < before[1]


def test_compaction_has_the_memory_that_the_cluster_gives_it(path: str) -> None:
    configure(path, "a", cleanup_policy="compact")
    little = BrokerDefaults(given={CLEANER_MEMORY: "100"})  # room for fewer keys than a batch has
    figures = run_job(COMPACT_TOPICS, path, CompactTopicsOptions(defaults=little))
    assert (figures.partitions, figures.waiting) == (0, 2)
    assert len(rows(path, "a")) == 6 * RECORDS


def test_a_sweep_deletes_what_is_garbage_still(path: str) -> None:
    run_job(RETAIN, path, RetentionOptions(topics=("a",)))
    assert run_job(SWEEP, path) == SweepResult()  # readers have their grace
    items = sweep_items(plan_job(SWEEP, path, AT_ONCE).units)
    doomed = [one.key for item in items for one in item.doomed]
    assert doomed
    both = SweepResult().plus(run_job(SWEEP, path, AT_ONCE))
    assert (both.objects, both.dropped) == (len(doomed), len(doomed))
    for item in pickle.loads(pickle.dumps(items)):
        assert sweep_item(item) == SweepResult()
    assert find_leaks(path).is_clean
    assert len(rows(path, "b")) == 6 * RECORDS


def test_two_sweeps_at_once_leave_nothing(path: str) -> None:
    run_job(RETAIN, path, RetentionOptions(topics=("a",)))
    known = commit(path).unreferenced
    first, second = at_once(lambda: run_job(SWEEP, path, AT_ONCE))
    assert first.dropped + second.dropped == len(known) > 0
    assert find_leaks(path).is_clean
    assert len(rows(path, "b")) == 6 * RECORDS
