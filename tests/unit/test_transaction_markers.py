"""Markers on their way, in virtual time: they reach whoever leads a partition, whatever is lost or
moves, and stop when nobody wants them any more.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Collection
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.coordinator.transaction.markers import Marker, MarkerSender, PendingMarkers
from lakehead.broker.coordinator.transaction.messages import TopicPartition
from lakehead.broker.protocol.api import schema
from lakehead.broker.protocol.messages import entity
from lakehead.storage.tasks import TaskScope
from tests.simulation.loop import simulate

NONE = ErrorCode.none
PLACES = [("t", index) for index in range(6)]


class Nodes:
    """Nodes 1 to 3 and what they lead; `faults` are what happens to the next requests."""

    def __init__(self) -> None:
        self.leaders: dict[TopicPartition, int | None] = {
            place: 1 + index % 3 for index, place in enumerate(PLACES)
        }
        self.written: Counter[TopicPartition] = Counter()
        self.requests: list[tuple[int, int]] = []
        """Node and number of markers of each."""
        self.faults: list[str] = []
        self.codes: dict[TopicPartition, ErrorCode] = {}

    def exists(self, where: TopicPartition) -> bool:
        return where in self.leaders

    def leader(self, where: TopicPartition) -> int | None:
        return self.leaders[where]

    async def send(self, node_id: int, key: int, version: int, request: Any) -> Any:
        fault = self.faults.pop(0) if self.faults else ""
        self.requests.append((node_id, len(request.markers)))
        if fault == "lost":
            raise ConnectionResetError("lost")
        module = schema(key, version).response_module
        answer = entity(
            module,
            "WriteTxnMarkersResponse",
            markers=[self._result(module, node_id, marker) for marker in request.markers],
        )
        if fault == "unanswered":
            raise TimeoutError
        return answer

    def _result(self, module: Any, node_id: int, marker: Any) -> Any:
        topics = []
        for topic in marker.topics:
            partitions = []
            for index in topic.partition_indexes:
                code = self._write(node_id, (topic.name, index))
                partitions.append(
                    entity(
                        module,
                        "WritableTxnMarkerPartitionResult",
                        partition_index=index,
                        error_code=code,
                    )
                )
            topics.append(
                entity(
                    module,
                    "WritableTxnMarkerTopicResult",
                    name=topic.name,
                    partitions=partitions,
                )
            )
        producer_id = marker.producer_id
        return entity(module, "WritableTxnMarkerResult", producer_id=producer_id, topics=topics)

    def _write(self, node_id: int, where: TopicPartition) -> ErrorCode:
        if where in self.codes:
            return self.codes[where]
        if self.leaders.get(where) != node_id:
            return ErrorCode.not_leader_or_follower
        self.written[where] += 1
        return NONE


class Sending:
    """Jobs of one sender."""

    def __init__(self, nodes: Nodes) -> None:
        self.scope = TaskScope(self._crashed, on_failure=self._crashed)
        self.sender = MarkerSender(nodes, nodes, self.scope)
        self.is_wanted = True
        self.marked: Counter[TopicPartition] = Counter()

    def send(self, producer_id: int = 1) -> None:
        marker = Marker(
            producer_id=producer_id,
            producer_epoch=0,
            coordinator_epoch=0,
            is_commit=True,
            transaction_version=0,
        )
        job = PendingMarkers(marker=marker, is_wanted=lambda: self.is_wanted, on_marked=self._note)
        self.sender.send(job, PLACES)

    def _note(self, partitions: Collection[TopicPartition]) -> None:
        self.marked.update(partitions)

    def _crashed(self, name: str, error: BaseException) -> None:
        raise AssertionError(name) from error

    async def until_idle(self) -> None:
        await asyncio.sleep(100)  # virtual seconds
        assert not self.sender.waiting
        await self.scope.close()


def test_transactions_that_end_at_once_share_a_request_to_each_node() -> None:
    nodes = Nodes()

    async def world() -> None:
        sending = Sending(nodes)
        for producer_id in range(4):
            sending.send(producer_id)
        await sending.until_idle()
        assert sending.marked == Counter(dict.fromkeys(PLACES, 4))

    simulate(world, seed=1)
    assert sorted(nodes.requests) == [(1, 4), (2, 4), (3, 4)]


@pytest.mark.parametrize("seed", range(20))
def test_every_partition_gets_its_marker_in_the_end(seed: int) -> None:
    rng, nodes = random.Random(seed), Nodes()
    nodes.faults = rng.choices(["", "lost", "unanswered"], k=8)

    async def world() -> None:
        sending = Sending(nodes)
        sending.send()
        for _ in range(10):
            nodes.leaders[rng.choice(PLACES)] = rng.choice([1, 2, 3, None])
            await asyncio.sleep(rng.random() / 5)
        for place, leader in nodes.leaders.items():
            nodes.leaders[place] = leader or 1
        await sending.until_idle()
        assert sending.marked == Counter(dict.fromkeys(PLACES, 1))

    simulate(world, seed=seed)
    assert set(nodes.written) == set(PLACES)


@pytest.mark.parametrize(
    "code", [ErrorCode.invalid_producer_epoch, ErrorCode.unsupported_for_message_format]
)
def test_a_partition_where_the_transaction_has_ended_is_done(code: ErrorCode) -> None:
    nodes = Nodes()
    nodes.codes = dict.fromkeys(PLACES, code)

    async def world() -> None:
        sending = Sending(nodes)
        sending.send()
        await sending.until_idle()
        assert set(sending.marked) == set(PLACES)

    simulate(world, seed=1)


def test_partitions_that_are_no_more_are_done() -> None:
    nodes = Nodes()
    nodes.leaders.clear()

    async def world() -> None:
        sending = Sending(nodes)
        sending.send()
        assert set(sending.marked) == set(PLACES)
        await sending.until_idle()

    simulate(world, seed=1)
    assert nodes.requests == []


def test_a_coordinator_that_has_a_successor_sends_no_more() -> None:
    nodes = Nodes()
    nodes.codes = dict.fromkeys(PLACES, ErrorCode.transaction_coordinator_fenced)

    async def world() -> None:
        sending = Sending(nodes)
        sending.send()
        await sending.until_idle()
        assert not sending.marked

    simulate(world, seed=1)
    assert len(nodes.requests) == 3


def test_what_nobody_wants_any_more_is_not_sent_again() -> None:
    nodes = Nodes()
    nodes.leaders = dict.fromkeys(PLACES)

    async def world() -> None:
        sending = Sending(nodes)
        sending.send()
        sending.is_wanted = False
        nodes.leaders = dict.fromkeys(PLACES, 1)
        await sending.until_idle()
        assert not sending.marked

    simulate(world, seed=1)
    assert nodes.requests == []


def test_markers_that_met_an_unexpected_error_are_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nodes, failures = Nodes(), list[str]()
    ask = nodes.send

    async def ask_badly(*given: Any) -> Any:
        if len(failures) < 4:
            raise ZeroDivisionError("a defect")
        return await ask(*given)

    monkeypatch.setattr(nodes, "send", ask_badly)

    async def world() -> None:
        sending = Sending(nodes)
        sending.scope.on_failure = lambda name, error: failures.append(name)
        sending.send()
        await sending.until_idle()
        assert sending.marked == Counter(dict.fromkeys(PLACES, 1))

    simulate(world, seed=1)
    assert len(failures) >= 4


async def test_markers_that_wait_for_a_leader_are_looked_at_some_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Thousands of transactions may end while a node is away."""
    monkeypatch.setattr("lakehead.broker.coordinator.transaction.markers._PAUSE_S", 0.001)
    nodes, looks = Nodes(), 0
    nodes.leaders = dict.fromkeys(PLACES)
    sending, jobs = Sending(nodes), 1_000
    for producer_id in range(jobs):
        sending.send(producer_id)
    assert sending.sender.waiting == jobs * len(PLACES)

    def leader(_: TopicPartition) -> int | None:
        nonlocal looks
        looks += 1
        return None

    monkeypatch.setattr(nodes, "leader", leader)
    in_turns: list[int] = []
    while sum(in_turns) < 3 * jobs * len(PLACES):
        before = looks
        await asyncio.sleep(0)
        in_turns.append(looks - before)
        assert sending.sender.waiting == jobs * len(PLACES)
    assert max(in_turns) <= 1_000
    await sending.scope.close()
