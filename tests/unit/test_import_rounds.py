"""Rounds of an import into a store, and its comparison with topics that change meanwhile."""

import random
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from typing import Any

import pytest

from lakehead.broker.cli.migration import comparison
from lakehead.broker.cli.migration.source_batches import Bounds
from lakehead.broker.cli.migration.source_brokers import Incarnation, Place, TopicGone
from lakehead.broker.cli.migration.source_cluster import SourceCluster, SourceTopic
from lakehead.broker.cli.migration.target_store import TargetStore, opened_target
from lakehead.storage.format.records import KafkaRecord
from lakehead.storage.object_store.memory import MemoryStore
from tests.support.command_line import CommandLine


def topic(partitions: int = 1) -> SourceTopic:
    return SourceTopic(topic=Incarnation("orders", "ab" * 16), partitions=partitions, configs={})


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
async def target(store: MemoryStore) -> AsyncIterator[TargetStore]:
    async with opened_target(store, None) as opened:
        yield opened


async def append(target: TargetStore, *values: bytes, from_start: bool = False) -> int:
    """Append records to partition 0; return its end."""
    (stream,) = (await target.topics([topic()], from_start=from_start))["orders"]
    first = stream.next_offset
    records = [KafkaRecord(first + i, 1000, None, one, ()) for i, one in enumerate(values)]
    await target.add_records(stream, records)
    return stream.next_offset


async def test_a_round_after_one_that_failed_keeps_what_came_from_the_start(
    target: TargetStore,
) -> None:
    assert await append(target, b"former") == 1
    assert await append(target, b"1", b"2", from_start=True) == 2
    assert await append(target, b"3", from_start=True) == 3
    assert target.made_again == {"orders"}


def compare_with(monkeypatch: pytest.MonkeyPatch, bounds: list[Bounds]) -> SourceCluster:
    """Return a source whose partitions have these bounds, and are gone when they are read."""

    async def known(_: object, places: Collection[Place]) -> dict[Place, Bounds]:
        return {one: bounds[one.partition] for one in places}

    async def fetched(_: object, place: Place, *__: int) -> AsyncGenerator[Any, None]:
        for nothing in bounds[:0]:
            yield nothing
        raise TopicGone(f"{place} is not at the source any more")

    monkeypatch.setattr(comparison, "partition_bounds", known)
    monkeypatch.setattr(comparison, "fetched_batches", fetched)
    return SourceCluster("localhost:1", None, random.Random(1))


async def test_a_topic_that_is_deleted_while_it_is_compared_is_gone(
    target: TargetStore, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await append(target, b"1")
    await target.upload()
    source = compare_with(monkeypatch, [Bounds(0, 1)])
    (found,) = [one async for one in comparison.compared(source, store, target.state, [topic()])]
    assert found.is_gone


async def test_partitions_that_were_added_at_the_source_are_behind(
    target: TargetStore, store: MemoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    await target.topics([topic()])
    source = compare_with(monkeypatch, [Bounds(0, 0), Bounds(3, 8)])
    found = [one async for one in comparison.compared(source, store, target.state, [topic(2)])]
    assert [(one.partition, one.behind, one.is_gone) for one in found] == [
        (0, 0, True),
        (1, 5, False),
    ]


@pytest.mark.parametrize("flags", [["--follow"], ["--topic", "orders", "--from-start"]])
def test_a_comparison_imports_nothing(
    flags: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = CommandLine(monkeypatch, capsys).fails("import", "localhost:1", "--verify", *flags)
    assert "--verify imports nothing" in line
