"""One suite that every write-ahead log passes: memory, simulated device, real file, objects."""

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from lakehead.storage.errors import Fenced, RecordTooLarge, WalClosed, WalFull
from lakehead.storage.object_store import MemoryStore
from lakehead.storage.wal import MemoryWal, WriteAheadLog, open_wal
from tests.support.encryption_keys import MemoryKeys
from tests.support.object_wal_tools import FlooredWal
from tests.support.wal_tools import (
    Listener,
    append_released,
    new_device,
    open_small,
    recovered,
    started,
)

Reopen = Callable[[], Awaitable[WriteAheadLog]]


@pytest.fixture(params=["memory", "device", "encrypted", "file", "objects"])
async def reopen(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Reopen]:
    """A function that closes the log of before, if any, and opens it again."""
    current: list[WriteAheadLog] = []
    device = await new_device(ring_length=1024 * 1024)
    data_keys = MemoryKeys(random.Random(3)).data_keys()

    async def open_next() -> WriteAheadLog:
        if current:
            await current[-1].close()
        if request.param == "memory":
            last = current[-1] if current else None
            wal: WriteAheadLog = (
                last.reopen() if isinstance(last, MemoryWal) else MemoryWal(capacity=1024 * 1024)
            )
        elif request.param == "device":
            wal = await open_small(device)
        elif request.param == "encrypted":
            wal = await open_small(device, data_keys=data_keys)
        elif request.param == "objects":
            last = current[-1] if current else None
            wal = last.reopen() if isinstance(last, FlooredWal) else FlooredWal(MemoryStore())
        else:
            uri = f"block:{tmp_path / 'wal'}?size=1MiB"
            wal = await open_wal(uri, rng=random.Random(1))
        current.append(wal)
        return wal

    yield open_next
    if current:
        await current[-1].close()


async def test_1_a_log_never_written_recovers_nothing(reopen: Reopen) -> None:
    wal = await reopen()
    assert await recovered(wal) == []
    assert wal.trimmed_position == wal.released_position == wal.next_position == 0
    wal = await reopen()
    assert await recovered(wal) == []


async def test_2_a_log_started_and_never_appended_to_recovers_nothing(reopen: Reopen) -> None:
    for epoch in range(3):
        wal = await reopen()
        listener = await started(wal, epoch)
        assert wal.pending_bytes == 0
        assert listener.positions == []
    assert await recovered(await reopen()) == []


async def test_3_what_was_appended_is_recovered_as_it_was(reopen: Reopen) -> None:
    wal = await reopen()
    listener = await started(wal, 1)
    payloads = [bytes([i]) * size for i, size in enumerate([0, 1, 5000, 4096, 100_000, 17])]
    ends = [
        wal.append(2**60 + i, 2**33, 2**40 + i, 10, memoryview(p)) for i, p in enumerate(payloads)
    ]
    assert wal.pending_bytes > 0
    await listener.wait_released(ends[-1])
    assert (wal.pending_bytes, wal.released_position) == (0, ends[-1])
    found = await recovered(await reopen())
    assert [bytes(r.payload) for r in found] == payloads
    assert [(r.stream_id, r.epoch, r.base_offset, r.count) for r in found] == [
        (2**60 + i, 2**33, 2**40 + i, 10) for i in range(6)
    ]
    assert all(r.position < r.end_position for r in found)


async def test_4_close_waits_for_what_was_appended(reopen: Reopen) -> None:
    wal = await reopen()
    listener = await started(wal, 1)
    end = wal.append(1, 1, 0, 1, b"last words")
    await wal.close()
    assert listener.positions[-1] == end
    assert len(await recovered(await reopen())) == 1


async def test_5_recovery_may_be_repeated(reopen: Reopen) -> None:
    wal = await reopen()
    listener = await started(wal, 1)
    await append_released(wal, listener, b"once")
    wal = await reopen()
    first = await recovered(wal)
    assert [bytes(r.payload) for r in first] == [b"once"]
    assert await recovered(wal) == first


async def test_6_trim_forgets_up_to_the_position(reopen: Reopen) -> None:
    wal = await reopen()
    listener = await started(wal, 1)
    payloads = [b"%d" % i * 3000 for i in range(9)]
    ends = [await append_released(wal, listener, payload) for payload in payloads]
    await wal.trim(ends[3])
    await wal.trim(ends[1])
    assert wal.trimmed_position == ends[3]
    wal = await reopen()
    found = await recovered(wal)
    assert [bytes(r.payload) for r in found] == payloads[4:]
    await wal.trim(found[-1].end_position)
    assert await recovered(await reopen()) == []


async def test_7_epochs_follow_each_other_and_all_is_kept_until_trimmed(reopen: Reopen) -> None:
    written: list[int] = []
    for epoch in range(1, 6):
        wal = await reopen()
        assert [r.base_offset for r in await recovered(wal)] == written
        listener = Listener()
        await wal.start(epoch=epoch, listener=listener)
        for offset in range(epoch * 10, epoch * 10 + epoch):
            await listener.wait_released(wal.append(1, epoch, offset, 1, b"x" * 500))
            written.append(offset)


async def test_8_an_epoch_that_is_not_newer_is_fenced(reopen: Reopen) -> None:
    await started(await reopen(), 5)
    wal = await reopen()
    await recovered(wal)
    with pytest.raises(Fenced, match="epoch 5"):
        await wal.start(epoch=5, listener=Listener())
    await wal.start(epoch=6, listener=Listener())


async def test_9_full_means_wal_full_without_a_trace_until_a_trim(reopen: Reopen) -> None:
    wal = await reopen()
    listener = await started(wal, 1)
    count = 0
    end = 0
    with pytest.raises(WalFull):
        for _ in range(1000):
            end = await append_released(wal, listener, b"f" * 10_000)
            count += 1
    assert count > 60
    position = wal.next_position
    with pytest.raises(WalFull):
        wal.append(1, 1, 0, 1, b"f" * 10_000)
    assert (wal.next_position, wal.pending_bytes) == (position, 0)
    await wal.trim(end)
    await append_released(wal, listener, b"room again" * 1000)
    found = await recovered(await reopen())
    assert [bytes(r.payload) for r in found] == [b"room again" * 1000]


async def test_10_a_record_beyond_the_limit_is_refused(reopen: Reopen) -> None:
    wal = await reopen()
    listener = await started(wal, 1)
    with pytest.raises(RecordTooLarge):
        wal.append(1, 1, 0, 1, b"x" * 1024 * 600)
    await append_released(wal, listener, b"x" * 1024 * 400)


async def test_11_nothing_goes_on_after_close_or_before_start(reopen: Reopen) -> None:
    wal = await reopen()
    with pytest.raises(RuntimeError):
        await wal.start(epoch=1, listener=Listener())
    with pytest.raises(WalClosed):
        wal.append(1, 1, 0, 1, b"")
    await started(wal, 1)
    await wal.close()
    await wal.close()
    with pytest.raises(WalClosed):
        wal.append(1, 1, 0, 1, b"")
    with pytest.raises(WalClosed):
        await wal.trim(0)


async def test_12_many_laps(reopen: Reopen) -> None:
    wal = await reopen()
    listener = await started(wal, 1)
    rng = random.Random(4)
    ends: list[int] = []
    payloads = [rng.randbytes(rng.randrange(60_000)) for _ in range(150)]
    for payload in payloads:
        ends.append(await append_released(wal, listener, payload))
        await wal.trim(ends[-5] if len(ends) > 5 else 0)
    assert ends[-1] > 3 * wal.capacity
    assert [bytes(r.payload) for r in await recovered(await reopen())] == payloads[-4:]


async def test_13_a_trim_beyond_what_is_released_is_a_mistake(reopen: Reopen) -> None:
    wal = await reopen()
    await started(wal, 1)
    with pytest.raises(ValueError, match="released"):
        await wal.trim(wal.append(1, 1, 0, 1, b"pending"))
