"""What one turn of the event loop brings to a coordinator's log is written once, in order."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import cast

import pytest

from lakehead.broker.coordinator.log import BatchingLog, CoordinatorLog, OnDone
from lakehead.storage.errors import WalFull
from lakehead.storage.format.batch_writer import KeyValue


class Written:
    """A log that notes what is written, and answers when it is told to."""

    def __init__(self) -> None:
        self.batches: list[list[KeyValue]] = []
        self.waiting: list[OnDone] = []

    def append(self, records: Sequence[KeyValue], on_done: OnDone) -> None:
        self.batches.append(list(records))
        self.waiting.append(on_done)

    def gathered(self) -> BatchingLog:
        return BatchingLog(cast(CoordinatorLog, self))


A, B, C = (b"a", b"1"), (b"b", None), (b"a", b"2")


async def test_one_turn_is_one_batch_and_each_is_told() -> None:
    log = Written()
    gathered = log.gathered()
    told: list[tuple[str, Exception | None]] = []
    gathered.append([A], lambda error: told.append(("first", error)))
    gathered.append([B, C], lambda error: told.append(("second", error)))
    assert log.batches == []
    await asyncio.sleep(0)
    assert log.batches == [[A, B, C]]
    full = WalFull("full")
    log.waiting[0](full)
    assert told == [("first", full), ("second", full)]


class NarrowLog(Written):
    """A log that has room for batches of a few bytes."""

    def append(self, records: Sequence[KeyValue], on_done: OnDone) -> None:
        if sum(len(value or b"") for _, value in records) > 100:
            on_done(WalFull("full"))
        else:
            super().append(records, on_done)


async def test_what_follows_a_refused_batch_in_one_turn_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was made of what the refused batch has, which is undone; and not while it is appended."""
    monkeypatch.setattr("lakehead.broker.coordinator.log._BATCH_SIZE", 300)
    log = NarrowLog()
    gathered = log.gathered()
    told: list[tuple[str, bool]] = []
    gathered.append([A], lambda error: told.append(("before", error is None)))
    gathered.append([(b"a", b"x" * 290)], lambda error: told.append(("large", error is None)))
    gathered.append([B], lambda error: told.append(("after", error is None)))
    assert told == []
    outcome = gathered.outcome
    await asyncio.sleep(0)
    assert log.batches == [[A]]
    assert told == [("large", False), ("after", False)]
    assert isinstance(outcome.result(), WalFull)
    gathered.append([C], lambda error: told.append(("later", error is None)))
    await asyncio.sleep(0)
    for on_done in log.waiting:
        on_done(None)
    assert log.batches == [[A], [C]]
    assert told[2:] == [("before", True), ("later", True)]


async def test_the_next_turn_is_another_batch() -> None:
    log = Written()
    gathered = log.gathered()
    for record in (A, B):
        gathered.append([record], lambda _: None)
        await asyncio.sleep(0)
    assert log.batches == [[A], [B]]


async def test_what_is_written_past_it_comes_after_what_was_gathered() -> None:
    log = Written()
    gathered = log.gathered()
    gathered.append([A], lambda _: None)
    gathered.flush()
    log.append([B], lambda _: None)
    gathered.append([C], lambda _: None)
    await asyncio.sleep(0)
    assert log.batches == [[A], [B], [C]]
    gathered.flush()
    assert len(log.batches) == 3


async def test_who_answers_at_once_may_append_again() -> None:
    log = Written()
    gathered = log.gathered()
    gathered.append([A], lambda _: gathered.append([B], lambda _: None))
    await asyncio.sleep(0)
    log.waiting[0](None)
    await asyncio.sleep(0)
    assert log.batches == [[A], [B]]


class BrokenLog(Written):
    """A log whose second append raises what no log should; `is_written`: after it has written."""

    def __init__(self, *, is_written: bool) -> None:
        super().__init__()
        self.is_written = is_written

    def append(self, records: Sequence[KeyValue], on_done: OnDone) -> None:
        is_first = not self.batches
        if is_first or self.is_written:
            super().append(records, on_done)
        if not is_first:
            raise MemoryError


@pytest.mark.parametrize("is_written", [True, False])
async def test_an_unexpected_error_of_a_batch_leaves_no_request_without_an_outcome(
    is_written: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gets its outcome once, also if the batch had been appended by then."""
    monkeypatch.setattr("lakehead.broker.coordinator.log._BATCH_SIZE", 1)
    log = BrokenLog(is_written=is_written)
    gathered = log.gathered()
    told: list[tuple[int, bool]] = []

    def note(number: int, error: Exception | None) -> None:
        told.append((number, error is None))

    for number in range(4):
        gathered.append([A], partial(note, number))
    last = gathered.outcome
    with pytest.raises(MemoryError):
        gathered.flush()
    assert isinstance(last.result(), MemoryError)
    for on_done in log.waiting:
        on_done(None)
    assert len(told) == 4
    assert sorted(told) == [(0, True), (1, False), (2, False), (3, False)]


async def test_an_unexpected_error_of_one_request_is_not_that_of_the_others() -> None:
    def broken(_error: Exception | None) -> None:
        raise ZeroDivisionError("a defect")

    log, told = Written(), list[Exception | None]()
    gathered = log.gathered()
    gathered.append([A], broken)
    gathered.append([B], told.append)
    outcome = gathered.outcome
    await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        log.waiting[0](None)
    assert told == [None]
    assert outcome.result() is None
