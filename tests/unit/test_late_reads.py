"""Responses of an import's source without a batch: of a gap at the end, and of tiered storage that
is late.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

import pytest
from kio.schema.errors import ErrorCode

from lakehead.broker.cli.migration import source_batches
from lakehead.broker.cli.migration.source_batches import _Response, fetched_batches
from lakehead.broker.cli.migration.source_brokers import (
    Incarnation,
    Place,
    SourceBrokers,
    SourceChannel,
)
from lakehead.storage.errors import BrokerUnavailable
from lakehead.storage.format.batch_writer import encode_batch
from lakehead.storage.format.record_batch import patch

PLACE = Place(Incarnation("orders", ""), 0)
END = 10
_Result = TypeVar("_Result")


class Source:
    """Sends a batch at offset 4 after `empty` responses without one; `local` is the first offset
    outside of tiered storage.
    """

    def __init__(self, empty: int, local: int, newest: int = 8) -> None:
        self.fetches = 0
        self._empty = empty
        self._local = local
        self._newest = newest

    def supports(self, _: int, version: int) -> bool:
        return version <= self._newest

    async def at_leader(
        self, _: Place, send: Callable[[SourceChannel], Awaitable[_Result]]
    ) -> _Result:
        return await send(cast(SourceChannel, self))

    async def fetch(self, *_: object) -> _Response:
        self.fetches += 1
        if self.fetches <= self._empty:
            return _Response(memoryview(b""), [])
        data = encode_batch([(None, b"v")] * (END - 4), 1000)
        patch(data, 0, 4, 7)
        return _Response(memoryview(data), [])

    async def listed(
        self, _: object, places: Sequence[Place], which: int
    ) -> Iterator[tuple[Place, ErrorCode, int]]:
        assert which == -4
        return iter([(one, ErrorCode.none, self._local) for one in places])


async def read(source: Source, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the offsets at which batches begin."""
    monkeypatch.setattr(source_batches, "_fetch", source.fetch)
    monkeypatch.setattr(source_batches, "_listed_offsets", source.listed)
    brokers: Any = cast(SourceBrokers, source)
    return [
        batch.header.base_offset
        async for response in fetched_batches(brokers, PLACE, 0, END)
        for batch in response.batches
    ]


@pytest.mark.parametrize("source", [Source(9, local=0), Source(9, local=8, newest=7)])
async def test_a_gap_at_the_end_is_passed_over(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await read(source, monkeypatch) == []
    assert source.fetches == 3


async def test_a_late_read_of_tiered_storage_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert await read(Source(7, local=8), monkeypatch) == [4]


async def test_tiered_storage_that_sends_nothing_makes_the_source_unavailable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(BrokerUnavailable, match=r"remote\.fetch\.max\.wait\.ms"):
        await read(Source(1000, local=8), monkeypatch)
