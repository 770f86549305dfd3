"""`lakehead.scan` of a topic with transactions, as its leaders left it: what was committed, no
more.
"""

import asyncio

import pytest

import lakehead
from lakehead.storage.object_store import MemoryStore
from tests.unit.test_object_wal_recovery import state_of
from tests.unit.test_takeover import PLACES, Place
from tests.unit.test_transaction_lives import SCRIPT, leading, stable_after, write


def committed_below(count: int) -> list[int]:
    """The data of the first `count` of the script that a reader of committed records gets."""
    found = []
    for offset, (producer_id, kind) in enumerate(SCRIPT[: stable_after(count)]):
        ends = (end for one, end in SCRIPT[offset:count] if one == producer_id and end != "data")
        if kind == "data" and next(ends) == "commit":
            found.append(offset)
    return found


def scanned(store: MemoryStore) -> list[int]:
    found: list[int] = (
        lakehead.scan(store, "t", columns=["offset"]).read_all()["offset"].to_pylist()
    )
    return found


@pytest.mark.parametrize("name", PLACES)
@pytest.mark.parametrize("is_clean", [True, False])
@pytest.mark.parametrize("upload_every", [1, 3, 100])
async def test_a_scan_gives_what_was_committed(
    name: str, is_clean: bool, upload_every: int
) -> None:
    store, place = MemoryStore(), Place(name)
    lives = range(0, len(SCRIPT), 2)
    seen = []
    for node_id, first in enumerate(lives):
        async with leading(store, place, node_id, is_clean=is_clean) as (engine, partition):
            for number in range(first, first + 2):
                await write(partition, number)
                if not (number + 1) % upload_every:
                    await engine.upload_now()
        end = (await state_of(store)).streams[0].end_offset
        assert await asyncio.to_thread(scanned, store) == committed_below(end)
        seen.append(end)
    assert seen[-1] >= len(SCRIPT) - 2 or (upload_every, is_clean) == (100, False)
    assert committed_below(len(SCRIPT)) == [1, 5]
