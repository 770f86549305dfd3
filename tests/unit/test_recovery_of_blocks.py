"""Records that a crash left in a log are uploaded while it is read: several objects at once, and
committed in the order of the log.
"""

import asyncio
from collections.abc import Sequence

import pytest

from lakehead.storage.errors import StorageError
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.stream.settings import StorageSettings
from tests.unit.test_object_wal_recovery import running, state_of
from tests.unit.test_stream_engine import append, read_all
from tests.unit.test_takeover import Place

SMALL = StorageSettings(upload_size=1000, upload_age_s=3600)
AT_ONCE, TURNS = 3, 200


class LatestFirst(MemoryStore):
    """Makes each third data object in fewer turns of the loop than the two before it; `broken` is
    the number of the object that is refused.
    """

    def __init__(self, broken: int = -1) -> None:
        super().__init__()
        self.is_on = False
        self.made: list[str] = []
        self.most = 0
        self._broken = broken
        self._on_the_way = 0
        self._count = 0

    async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
        if self.is_on and key.startswith("data/"):
            number = self._count
            self._count += 1
            self._on_the_way += 1
            self.most = max(self.most, self._on_the_way)
            for _ in range(TURNS * (AT_ONCE - number % AT_ONCE)):
                await asyncio.sleep(0)
            self._on_the_way -= 1
            if number == self._broken:
                raise StorageError("refused")
            self.made.append(key)
        await super().create(key, pieces)


async def crashed(store: LatestFirst, place: Place) -> list[list[int]]:
    """Write nine blocks of records and crash."""
    async with running(store, place.own) as (_, streams):
        written: list[list[int]] = [[], []]
        for _ in range(36):
            for stream, bases in zip(streams, written, strict=True):
                bases.append(await append(stream, size=40))
    store.is_on = True
    return written


async def test_a_restart_writes_objects_at_once_and_commits_them_in_order() -> None:
    store, place = LatestFirst(), Place("records")
    written = await crashed(store, place)
    async with running(store, place.own, settings=SMALL, partitions=0) as (engine, _):
        assert store.most == AT_ONCE
        assert len(store.made) >= 9
        assert store.made != sorted(store.made)
        streams = await engine.open_streams([0, 1])
        assert [await read_all(stream) for stream in streams] == written


@pytest.mark.parametrize("broken", [0, 1, 2, 5])
async def test_a_restart_that_fails_has_committed_a_beginning_and_the_next_one_the_rest(
    broken: int,
) -> None:
    store, place = LatestFirst(broken), Place("records")
    written = await crashed(store, place)
    with pytest.raises(StorageError, match="refused"):
        async with running(store, place.own, settings=SMALL, partitions=0):
            pass
    store.is_on = False
    ends = [stream.end_offset for stream in (await state_of(store)).streams.values()]
    assert all(end % 3 == 0 and end < 108 for end in ends)
    async with running(store, place.own, settings=SMALL, partitions=0) as (engine, _):
        streams = await engine.open_streams([0, 1])
        assert [await read_all(stream) for stream in streams] == written
