"""The object WAL as a writer: what it acknowledges, and what it makes of a store's answers."""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import uvloop

from lakehead.storage.errors import Fenced, OutcomeUnknown, WalFailed, WalFull
from lakehead.storage.format.stream_object import (
    FOOTER_SIZE,
    ObjectIndex,
    iter_records,
    read_index,
)
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.object_store.faulty import FaultProfile, FaultyStore
from lakehead.storage.object_store.protocol import Buffer
from lakehead.storage.tasks import TaskScope
from lakehead.storage.wal import ObjectWal, ObjectWalSettings
from lakehead.storage.wal.object import BatchingSettings, wal_key
from lakehead.storage.wal.object.batching import Batching
from lakehead.storage.wal.object.seal import read_wal_object
from lakehead.storage.wal.protocol import WalFloor
from tests.support.object_wal_tools import (
    QUICK,
    HeldStore,
    make_owner,
    make_wal,
    numbers,
    offsets,
    seal,
    turns,
)
from tests.support.rust_panic import Panic
from tests.support.wal_tools import Listener


async def begun(
    store: MemoryStore | HeldStore | FaultyStore,
    settings: ObjectWalSettings = QUICK,
    *,
    epoch: int = 0,
    incarnation: str = "a",
) -> tuple[ObjectWal, Listener]:
    wal = make_wal(store, settings, incarnation=incarnation)
    await wal.seal(WalFloor(epoch, 0), before=epoch)
    listener = Listener()
    await wal.start(epoch=epoch, listener=listener)
    return wal, listener


async def held(count: int) -> tuple[HeldStore, ObjectWal, Listener, list[int]]:
    """A log with `count` groups of one record each, all of their puts held."""
    store = HeldStore(MemoryStore())
    wal, listener = await begun(store)
    ends = []
    for offset in range(count):
        ends.append(wal.append(1, 0, offset, 1, b"r%d" % offset))
        await turns()
    assert store.numbers() == list(range(count))
    return store, wal, listener, ends


async def arrived(store: HeldStore, count: int) -> None:
    """Wait until so many puts are held: they are repeated by the log's own clock."""
    async with asyncio.timeout(30):
        while len(store.held) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def test_puts_that_overtake_each_other_are_released_in_sequence() -> None:
    store, wal, listener, ends = await held(4)
    for number in (2, 1, 3):
        store.settle(number)
        await turns()
        assert listener.positions == []
    store.settle(0)
    await turns()
    assert listener.positions == [ends[-1]]
    assert wal.pending_bytes == 0


async def test_a_put_whose_answer_was_lost_is_repeated_and_found_to_be_ours() -> None:
    store, wal, listener, ends = await held(2)
    store.settle(0, answers=False)
    store.settle(1)
    await arrived(store, 1)
    assert listener.positions == [], "nothing is released on a guess"
    assert store.numbers() == [0]
    store.settle(0)
    await turns()
    assert listener.positions == [ends[-1]]
    assert wal.stats.put_unknown == 1
    assert offsets(await seal(store.inner)) == [0, 1]


async def test_a_spoilt_read_of_an_own_object_is_repeated_before_the_log_ends() -> None:
    class Spoiling(MemoryStore):
        left = 2

        async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
            await super().create(key, pieces)
            if self.left == 2:
                raise OutcomeUnknown("the response is lost")

        async def get_suffix(self, key: str, length: int) -> tuple[bytes, int]:
            body, size = await super().get_suffix(key, length)
            if not self.left:
                return body, size
            self.left -= 1
            return bytes(len(body) - FOOTER_SIZE) + body[-FOOTER_SIZE:], size

    store = Spoiling()
    wal, listener = await begun(store)
    end = wal.append(1, 0, 0, 1, b"mine")
    async with asyncio.timeout(30):
        while listener.positions != [end]:  # noqa: ASYNC110 - as in `arrived`
            await asyncio.sleep(0.001)
    assert store.left == 0


async def test_a_put_that_never_arrived_is_repeated_with_the_same_bytes() -> None:
    store, _, listener, ends = await held(1)
    (_, body, _) = next(iter(store.held.values()))
    store.settle(0, lands=False)
    await arrived(store, 1)
    store.settle(0)
    await turns()
    assert listener.positions == ends
    assert store.inner.objects[wal_key(0, 0, 0)] == body


async def test_a_put_that_hangs_is_repeated_beside_it_and_either_may_land() -> None:
    store = HeldStore(MemoryStore())
    batching = BatchingSettings(linger_s=0.0)
    wal, listener = await begun(store, ObjectWalSettings(put_timeout_s=0.01, batching=batching))
    end = wal.append(1, 0, 0, 1, b"slow")
    await arrived(store, 2)
    async with asyncio.timeout(30):
        while listener.positions != [end]:
            while store.numbers():  # the first one lands when nobody waits for it any more
                store.settle(0)
            await asyncio.sleep(0.001)
    assert offsets(await seal(store.inner)) == [0]


async def test_an_unexpected_error_before_a_put_ends_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wal, listener = await begun(MemoryStore())

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    monkeypatch.setattr(wal, "_start", broken)
    wal.append(1, 0, 0, 1, b"lost")
    assert isinstance(await listener.wait_failed(), WalFailed)
    monkeypatch.undo()
    with pytest.raises(WalFailed):
        wal.append(1, 0, 1, 1, b"refused")
    assert listener.positions == []


@pytest.mark.parametrize("error", [RuntimeError, Panic])
async def test_an_unexpected_error_of_a_put_ends_the_log_for_those_that_wait(
    error: type[BaseException],
) -> None:
    class Defective(MemoryStore):
        async def create(self, key: str, pieces: Sequence[Buffer]) -> None:
            raise error("can't start new thread")

    store, crashes = Defective(), list[str]()
    owner = make_owner(store, scope=TaskScope(lambda name, _: crashes.append(name)))
    wal, listener = ObjectWal(store, owner, QUICK, are_shared=True), Listener()
    await wal.seal(WalFloor(0, 0), before=0)
    await wal.start(epoch=0, listener=listener)
    wal.append(1, 0, 0, 1, b"lost")
    assert "can't start new thread" in str(await listener.wait_failed())
    async with asyncio.timeout(10):
        await wal.close()
    await turns()
    assert crashes == ["put WAL 0"]


async def test_nothing_is_released_after_a_tombstone() -> None:
    store, wal, listener, ends = await held(4)
    for number in (0, 3):
        store.settle(number)
    await turns()
    assert listener.positions == [ends[0]]
    assert offsets(await seal(store.inner)) == [0]
    store.settle(1)
    store.settle(2)
    error = await listener.wait_failed()
    assert isinstance(error, WalFailed)
    assert isinstance(error.__cause__, Fenced)
    assert listener.positions == [ends[0]]
    with pytest.raises(WalFailed, match="sealed by node 9"):
        wal.append(1, 0, 4, 1, b"")
    with pytest.raises(WalFailed):
        await wal.trim(ends[0])
    await wal.close()
    assert listener.errors == [error]


async def test_an_object_of_another_writer_ends_the_log() -> None:
    store = MemoryStore()
    other, heard = await begun(store, incarnation="b")
    await heard.wait_released(other.append(1, 0, 0, 1, b"theirs"))
    wal, listener = await begun(store, incarnation="a")
    wal.append(1, 0, 0, 1, b"ours")
    assert "written by node 0" in str(await listener.wait_failed())
    assert listener.positions == []
    assert offsets(await seal(store)) == [0]


async def test_a_paused_writer_that_wakes_up_acknowledges_nothing() -> None:
    """Stopped past its lease, sealed by another, continued."""
    store, wal, listener, _ = await held(3)
    assert offsets(await seal(store.inner)) == []
    for number in range(3):
        store.settle(number)
    wal.append(1, 0, 3, 1, b"and on")
    await listener.wait_failed()
    await turns()
    for number in store.numbers():
        store.settle(number)
    await turns()
    assert listener.positions == []
    assert offsets(await seal(store.inner)) == [], "and what it put late is above the seal"


async def test_puts_of_a_dead_writer_that_land_after_the_seal_change_nothing() -> None:
    """The old node's upload was in flight while another recovered."""
    store, _, _, _ = await held(5)
    for number in (0, 1, 3):
        store.settle(number)
    first = await seal(store.inner)
    assert offsets(first) == [0, 1]
    assert first.leftovers == (wal_key(0, 0, 3),)
    store.settle(4)
    store.settle(2)
    second = await seal(store.inner)
    assert second.objects == first.objects
    assert second.leftovers == (wal_key(0, 0, 3), wal_key(0, 0, 4))


async def test_a_hole_ends_the_log_even_below_what_is_listed() -> None:
    """Stop at the hole, do not skip it."""
    store, _, listener, ends = await held(3)
    store.settle(0)
    store.settle(2)
    await turns()
    assert listener.positions == [ends[0]]
    assert offsets(await seal(store.inner)) == [0]
    assert numbers(store.inner, tombstones=True) == [(0, 1)]


async def test_a_log_never_written_and_one_wholly_trimmed_are_sealed_empty() -> None:
    store = MemoryStore()
    assert offsets(await seal(store)) == []
    wal, listener = await begun(store, epoch=1)
    end = wal.append(1, 0, 0, 1, b"x")
    await listener.wait_released(end)
    floor = wal.floor_at(end)
    await wal.trim(end)
    await wal.close()
    assert floor == WalFloor(1, 1)
    assert numbers(store, tombstones=False) == []
    assert offsets(await seal(store, floor=floor, before=2)) == []
    assert numbers(store, tombstones=True) == [(0, 0), (1, 1)]


async def test_two_processes_of_one_node_id_cannot_both_be_acknowledged() -> None:
    """Each epoch is registered once, so the older one finds its log sealed."""
    store = HeldStore(MemoryStore())
    old, old_listener = await begun(store, epoch=0)
    old.append(1, 0, 0, 1, b"old")
    await turns()
    await seal(store.inner)
    new, new_listener = await begun(store, epoch=1, incarnation="b")
    end = new.append(1, 1, 0, 1, b"new")
    await turns()
    store.settle(0)
    store.settle(0)
    await new_listener.wait_released(end)
    await old_listener.wait_failed()
    assert old_listener.positions == []


async def test_an_object_holds_streams_in_order_and_each_under_one_epoch() -> None:
    store = HeldStore(MemoryStore())
    wal, listener = await begun(store)
    for stream_id in (7, 2, 5):
        for offset in range(3):
            wal.append(stream_id, 4, offset, 1, b"%d/%d" % (stream_id, offset))
    end = wal.append(5, 6, 3, 2, b"under the next epoch")
    await turns()
    assert store.numbers() == [0, 1]
    store.settle(0)
    store.settle(1)
    await listener.wait_released(end)
    first = await read_index(store, wal_key(0, 0, 0))
    assert [item.stream_id for item in first.items] == [2, 5, 7]
    body = store.inner.objects[wal_key(0, 0, 0)]
    item = first.items[1]
    records = iter_records(body[item.position : item.position + item.size])
    assert [bytes(r.payload) for r in records] == [b"5/0", b"5/1", b"5/2"]
    assert [
        (span.stream_id, span.epoch, span.start_offset, span.end_offset)
        for found in (await seal(store.inner)).objects
        for span in found.ranges
    ] == [(2, 4, 0, 3), (5, 4, 0, 3), (7, 4, 0, 3), (5, 6, 3, 5)]


async def test_payloads_are_referred_to_until_they_are_put() -> None:
    store = HeldStore(MemoryStore())
    wal, _ = await begun(store)
    payload = bytearray(b"x" * 1000)
    wal.append(1, 0, 0, 1, memoryview(payload))
    with pytest.raises(BufferError):
        payload.append(0)
    await turns()
    assert store.numbers() == [0]


async def test_trim_deletes_whole_objects_and_tells_the_floor_first() -> None:
    store = MemoryStore()
    wal, listener = await begun(store, epoch=3)
    ends = []
    for offset in range(5):
        ends.append(wal.append(1, 0, offset, 1, b"x" * 100))
        await listener.wait_released(ends[-1])
    assert [wal.floor_at(end).number for end in ends] == [1, 2, 3, 4, 5]
    assert wal.floor_at(ends[2] - 1) == WalFloor(3, 2)
    await wal.trim(ends[2] - 1)
    assert wal.floor_at(ends[2] - 1) == WalFloor(3, 2)
    await wal.close()
    assert numbers(store, tombstones=False) == [(3, 2), (3, 3), (3, 4)]


async def test_a_full_log_and_a_slow_store_say_so_and_go_on() -> None:
    store = HeldStore(MemoryStore())
    settings = ObjectWalSettings(capacity=100_000, pending_size_max=30_000)
    wal, listener = await begun(store, settings)
    offset = 0
    while True:
        try:
            wal.append(1, 0, offset, 1, b"x" * 967)
        except WalFull:
            break
        offset += 1
        await turns(3)
    assert offset == 30
    async with asyncio.timeout(30):
        while listener.positions[-1:] != [30_000]:
            for number in store.numbers():
                store.settle(number)
            await asyncio.sleep(0.005)
    wal.append(1, 0, offset, 1, b"x" * 967)


async def test_a_record_longer_than_any_group_is_put_alone() -> None:
    store = MemoryStore()
    wal, listener = await begun(store)
    wal.append(1, 0, 0, 1, b"small")
    wal.append(1, 0, 1, 1, b"x" * 300_000)
    end = wal.append(1, 0, 2, 1, b"small")
    await listener.wait_released(end)
    sealed = await seal(store)
    assert offsets(sealed) == [0, 1, 2]
    assert sealed.objects[1].size > 300_000


async def test_what_is_released_is_what_a_seal_finds_on_any_store() -> None:
    for seed in range(30):
        rng = random.Random(seed)
        inner = MemoryStore()
        profile = FaultProfile(
            unavailable=0.1, lost_request=0.1, lost_response=0.1, latency_s_max=0.002
        )
        wal, listener = await begun(FaultyStore(inner, rng=rng, profile=profile))
        end = 0
        for offset in range(30):
            end = wal.append(1, 0, offset, 1, b"x" * rng.randrange(8000))
            if rng.random() < 0.3:
                await asyncio.sleep(rng.random() * 0.002)
        await listener.wait_released(end)
        found = [span for item in (await seal(inner)).objects for span in item.ranges]
        assert [span.start_offset for span in found][1:] == [s.end_offset for s in found][:-1]
        assert found[-1].end_offset == 30
        assert (wal.pending_bytes, listener.errors) == (0, [])
        assert isinstance(await read_wal_object(inner, wal_key(0, 0, 0)), ObjectIndex)


def test_a_group_that_waits_for_its_time_does_not_look_at_the_clock_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """uvloop's timers have whole milliseconds: one that is set for less rings at once."""
    looks = 0
    start_at = Batching.start_at

    def counted(batching: Batching, size: int, began: float, now: float) -> float:
        nonlocal looks
        looks += 1
        return start_at(batching, size, began, now)

    monkeypatch.setattr(Batching, "start_at", counted)
    groups = 20

    async def write() -> None:
        batching = replace(QUICK.batching, linger_s=0.0034)
        wal, listener = await begun(MemoryStore(), replace(QUICK, batching=batching))
        for offset in range(groups):
            await listener.wait_released(wal.append(1, 0, offset, 1, b"x"))
        await wal.close()

    uvloop.run(write())
    assert looks <= 5 * groups
