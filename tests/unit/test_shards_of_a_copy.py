"""Shards of a coordinator on a standby: read again as the log grows in the copy."""

import asyncio
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.log import CoordinatorLog
from lakehead.broker.coordinator.shards import Shards
from lakehead.broker.partition.partition import Topic
from lakehead.storage.clock import SystemClock
from lakehead.storage.errors import ObjectNotFound
from lakehead.storage.tasks import TaskScope, log_failure
from tests.property.test_coordinator_log import ListPartition

NAME = "__consumer_offsets"


class OnePartition:
    """The topic of a coordinator, with one partition."""

    name = NAME

    def partition_count(self) -> int:
        return 1

    def partition(self, _index: int) -> Any:
        return self

    async def create(self) -> None:
        """Not called."""


class Log:
    """A log that cannot be read at times."""

    def __init__(self) -> None:
        self.end = 0
        self.failures = 0
        self.reads = 0
        self.closed = 0


class Shard:
    def __init__(self, log: Log) -> None:
        self.read_to = -1
        self._log = log

    async def load(self) -> None:
        self._log.reads += 1
        if self._log.failures:
            self._log.failures -= 1
            raise ObjectNotFound("wal/0/1/1")
        self.read_to = self._log.end

    def close(self, _code: ErrorCode) -> None:
        self._log.closed += 1


async def test_a_log_whose_objects_were_just_deleted_is_read_again_without_a_further_advance(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No further commit may come: the cluster that is copied may be lost by then."""
    monkeypatch.setattr("lakehead.broker.coordinator.shards._READ_AGAIN_S", 0.0)
    log, topic, scope = Log(), OnePartition(), TaskScope(log_failure)

    def make(_index: int, _log: CoordinatorLog) -> Shard:
        return Shard(log)

    shards = Shards(cast(Any, topic), SystemClock(), scope, cast(Any, make))
    advanced = cast(Topic, topic)
    try:
        shards.load_all()
        assert cast(Shard, await shards.of("g")).read_to == 0
        log.end, log.failures = 5, 3
        shards.on_advance(advanced, 0)
        assert cast(Shard, await shards.of("g")).read_to == 0, "the former one serves meanwhile"
        await asyncio.wait(shards._loading.values(), timeout=20)
        assert cast(Shard, await shards.of("g")).read_to == 5
        assert log.reads == 5
        assert log.closed == 4, "those that could not be read take memory of groups, too"
        assert not shards.is_loading
    finally:
        await scope.close()


class FollowedTopic(OnePartition):
    """The topic of a coordinator, whose one partition grows elsewhere."""

    def __init__(self) -> None:
        self.log = ListPartition()

    def partition(self, _index: int) -> ListPartition:
        return self.log


class ReadingShard:
    def __init__(self, log: CoordinatorLog) -> None:
        self.log = log
        self.latest: dict[bytes, bytes] = {}

    async def load(self) -> None:
        await self.log.replay()
        self.latest = dict(self.log.latest)

    def close(self, _code: ErrorCode) -> None:
        """Nothing waits here."""


async def test_an_advance_reads_what_is_new_and_all_if_more_was_trimmed() -> None:
    topic, scope = FollowedTopic(), TaskScope(log_failure)
    stream = topic.log.stream
    writer = CoordinatorLog(topic.log, SystemClock(), scope, name="writer")
    shards = Shards(
        cast(Any, topic), SystemClock(), scope, cast(Any, lambda _, log: ReadingShard(log))
    )
    read_from: list[int] = []
    fetch = stream.fetch

    async def noted(offset: int, max_bytes: int) -> list[memoryview]:
        read_from.append(offset)
        return await fetch(offset, max_bytes)

    stream.fetch = noted  # type: ignore[method-assign]

    async def advance() -> dict[bytes, bytes]:
        read_from.clear()
        stream.confirm(10**6)
        shards.on_advance(cast(Topic, topic), 0)
        await asyncio.wait(shards._loading.values(), timeout=20)
        return cast(ReadingShard, await shards.of("g")).latest

    try:
        for number in range(100):
            writer.append([(b"%d" % (number % 10), b"%d" % number)], lambda _: None)
        assert len(await advance()) == 10
        assert read_from[0] == 0
        writer.append([(b"3", b"new"), (b"4", None)], lambda _: None)
        latest = await advance()
        assert (latest[b"3"], b"4" in latest, len(latest)) == (b"new", False, 9)
        assert read_from == [100]
        writer.append([(b"4", b"back"), (b"5", None)], lambda _: None)
        stream.confirm(10**6)
        await stream.trim(104)
        writer.append([(b"0", b"rest")], lambda _: None)
        assert await advance() == {b"0": b"rest"}
    finally:
        await scope.close()
