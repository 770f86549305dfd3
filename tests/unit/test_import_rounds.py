"""Rounds of an import into a store, and its comparison with topics that change meanwhile."""

import asyncio
import json
import random
from collections.abc import AsyncGenerator, AsyncIterator, Collection
from pathlib import Path
from typing import Any, cast

import pytest

from lakehead.broker.cli.migration import comparison, follow, run, source_brokers, source_cluster
from lakehead.broker.cli.migration.follow import Import
from lakehead.broker.cli.migration.share_positions import (
    source_share_positions,
    stored_share_positions,
)
from lakehead.broker.cli.migration.source_batches import Bounds
from lakehead.broker.cli.migration.source_brokers import (
    Incarnation,
    ListedGroup,
    Place,
    SourceBrokers,
    TopicGone,
)
from lakehead.broker.cli.migration.source_cluster import SourceCluster, SourceTopic
from lakehead.broker.cli.migration.target_store import TargetStore, opened_target
from lakehead.broker.coordinator.shards import partition_of
from lakehead.broker.coordinator.share.record_formats import (
    ShareUpdate,
    encode_key,
    encode_update,
)
from lakehead.broker.partition.partition import SHARE_STATES_TOPIC
from lakehead.broker.share.share_partition_key import SharePartitionKey
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import RequestRefused
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


class ShrinkingSource:
    """A source without ids of topics, which has no records but offsets: their bounds by topic, of
    each partition.
    """

    brokers = None

    def __init__(self, bounds: dict[str, list[Bounds]], monkeypatch: pytest.MonkeyPatch) -> None:
        self.bounds = bounds
        monkeypatch.setattr(run, "partition_bounds", self._known)
        monkeypatch.setattr(run, "fetched_batches", self._fetched)

    async def topics(self, _: object = None, *, is_quick: bool = False) -> list[SourceTopic]:
        assert is_quick in {True, False}
        return [
            SourceTopic(topic=Incarnation(name, ""), partitions=len(some), configs={})
            for name, some in self.bounds.items()
        ]

    async def _known(self, _: object, places: Collection[Place]) -> dict[Place, Bounds]:
        return {one: self.bounds[one.topic.name][one.partition] for one in places}

    async def _fetched(self, _: object, place: Place, *__: int) -> AsyncGenerator[Any, None]:
        if place.topic.name == "refused":
            raise RequestRefused("TOPIC_AUTHORIZATION_FAILED")
        for nothing in self.bounds.get("", ()):
            yield nothing


def importing(source: ShrinkingSource, target: TargetStore) -> Import:
    return Import(
        cast("SourceCluster", source),
        target,
        (),
        clock=SystemClock(),
        on_progress=lambda _: None,
        from_start=False,
    )


async def test_topics_that_shrank_are_left_out_and_the_others_go_on(
    target: TargetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that has grown beyond its end here looks as if it went on, with other records."""
    ten = Bounds(0, 10)
    source = ShrinkingSource({"lost": [ten], "fewer": [ten, ten], "well": [ten]}, monkeypatch)
    whole = importing(source, target)
    await whole.copy()
    assert whole.problems == []
    source.bounds = {"lost": [Bounds(0, 4)], "fewer": [ten], "well": [Bounds(0, 12)]}
    await whole.copy()
    assert whole.results["well"].end_offsets == 12
    problems = {one.topic: one.problem for one in whole.problems}
    assert "lost-0 ends at 10 here and at 4 at the source" in problems["lost"]
    assert "topic fewer has 2 partitions in" in problems["fewer"]
    assert all(f"--topic {name} --from-start" in text for name, text in problems.items())
    source.bounds = {name: [Bounds(0, 30)] for name in ("lost", "fewer", "well")}
    await whole.copy()
    assert {one.topic for one in whole.problems} == {"lost", "fewer"}
    await target.upload()
    ends = {
        name: [target.state.stream(number).end_offset for number in topic.partitions]
        for name, topic in target.state.topics.items()
    }
    assert ends == {"lost": [10], "fewer": [10, 10], "well": [30]}


async def test_following_shows_a_topic_that_cannot_be_imported_once(
    target: TargetStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "_PAUSE_MIN_S", 0.0)
    source = ShrinkingSource({"refused": [Bounds(0, 1)], "well": [Bounds(0, 0)]}, monkeypatch)
    whole, shown, stop = importing(source, target), list[str](), asyncio.Event()
    rounds = iter(range(5))

    async def topics(_: object, *, is_quick: bool = False) -> list[SourceTopic]:
        number = next(rounds)
        source.bounds["well"] = [Bounds(0, number)]
        if number == 4:
            source.bounds.pop("refused")
            stop.set()
        return await ShrinkingSource.topics(source, (), is_quick=is_quick)

    monkeypatch.setattr(source, "topics", topics)
    await whole.follow(stop, shown.append)
    assert shown == ["TOPIC_AUTHORIZATION_FAILED; the others go on"]
    assert whole.results["well"].end_offsets == 4
    assert whole.results["refused"].is_gone


def test_a_topic_that_was_not_imported_fails_the_command_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    source = ShrinkingSource({"refused": [Bounds(0, 1)], "well": [Bounds(0, 3)]}, monkeypatch)
    monkeypatch.setattr(source_brokers.SourceBrokers, "topics", source.topics)
    monkeypatch.setattr(
        source_cluster.SourceCluster, "topics", lambda _, *__, **___: source.topics(())
    )
    flags = ("--without", "acls", "--without", "quotas", "--without", "users")
    done = CommandLine(monkeypatch, capsys)(
        *(
            "import",
            "localhost:1",
            "--path",
            str(tmp_path),
            *flags,
            "--without",
            "positions",
            "--json",
        )
    )
    assert done.status == 1
    assert done.err.strip().splitlines()[-1] == "lakehead: TOPIC_AUTHORIZATION_FAILED"
    rows = {one["topic"]: one["end_offsets"] for one in map(json.loads, done.out.splitlines())}
    assert rows == {"refused": 0, "well": 3}


async def test_share_groups_of_a_source_that_gives_no_positions_away_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Older:
        def supports(self, key: int, version: int) -> bool:
            return (key, version) != (90, 0)

    brokers = SourceBrokers({"bootstrap.servers": "localhost:1"}, None, random.Random(1))

    async def listed() -> list[ListedGroup]:
        kinds = {"a": "share", "b": "share", "c": "classic"}
        return [ListedGroup(name, kind, 0) for name, kind in kinds.items()]

    async def channel(_: int) -> Older:
        return Older()

    monkeypatch.setattr(brokers, "listed_groups", listed)
    monkeypatch.setattr(brokers, "channel", channel)
    assert await brokers.groups() == ["c"]
    found = await source_share_positions(brokers, {"orders"})
    assert (found.groups, found.not_served) == ({}, 2)


async def test_positions_of_share_groups_are_read_once_nodes_have_moved_them(
    target: TargetStore, store: MemoryStore
) -> None:
    """Then an update follows the state that was imported."""
    await append(target, *map(bytes, range(9)))
    await target.set_share_positions({"team": {("orders", 0): 3}}, {"orders"}, 5)
    key = SharePartitionKey("team", bytes.fromhex(target.state.topics["orders"].topic_id), 0)
    logs = await target._internal_topic(SHARE_STATES_TOPIC, 1, {})
    update = ShareUpdate(0, 1, 7, 0, ())
    record = (encode_key(key, is_update=True), encode_update(update))
    target._append_keyed(logs[partition_of(key.text, len(logs))], [record], 0)
    await target.upload()
    assert await stored_share_positions(store, target.state) == {key: 7}


def test_a_source_that_no_broker_listens_at_is_named_and_leaves_no_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(source_brokers, "_TRIES", 1)
    place = tmp_path / "new"
    line = CommandLine(monkeypatch, capsys).fails("import", "127.0.0.1:1", "--path", str(place))
    assert "brokers at 127.0.0.1:1 do not respond: connection refused;" in line
    assert not list(place.rglob("*.json"))
