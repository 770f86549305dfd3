"""What a block WAL does when its device fails, lies or is damaged, and how it groups writes."""

import asyncio
import errno
import random
from dataclasses import replace

import pytest

from lakehead.storage.errors import WalCorrupted, WalFailed, WalFull
from lakehead.storage.wal import BlockWal, BlockWalSettings, block
from lakehead.storage.wal.block_format import (
    RECORD,
    SECTOR,
    SLICES_START,
    SliceHeader,
    newest,
    read_record_header,
    sector_up,
)
from lakehead.storage.wal.memory_device import MemoryDevice
from lakehead.storage.wal.volume import format_device, open_slice, volume_image
from tests.simulation.hostile_device import Platter
from tests.simulation.loop import simulate
from tests.support.wal_tools import (
    RING_START,
    SMALL,
    Listener,
    append_released,
    new_device,
    open_small,
    recovered,
    started,
)


def slice_header(device: MemoryDevice) -> SliceHeader:
    slots = memoryview(bytes(device.content[SLICES_START : SLICES_START + 2 * SECTOR]))
    header = newest(slots, SliceHeader.decode)
    assert header is not None
    return header


async def written(count: int = 6, size: int = 5000) -> tuple[MemoryDevice, list[int]]:
    """A crashed log of `count` released records, each in a block of its own."""
    device = await new_device()
    wal = await open_small(device)
    listener = await started(wal, 1)
    ends = [await append_released(wal, listener, bytes([i]) * size) for i in range(count)]
    return device.crash(), ends


# ------------------------------------------------------------------ group commit


async def test_appends_of_one_iteration_are_one_write() -> None:
    device = await new_device()
    wal = await open_small(device)
    listener = await started(wal, 1)
    before = device.writes
    end = [wal.append(1, 1, i, 1, b"small") for i in range(20)][-1]
    await listener.wait_released(end)
    assert (device.writes - before, listener.positions) == (1, [end])


def test_with_all_slots_taken_appends_gather_and_completions_keep_their_order() -> None:
    async def world() -> None:
        device = await new_device(seed=3, latency_s=(0.001, 0.02))
        wal = await open_small(device)
        listener = await started(wal, 1)
        before = device.writes
        ends = []
        for i in range(60):
            ends.append(wal.append(1, 1, i, 1, b"x" * 100))
            await asyncio.sleep(0.0001)
        await listener.wait_released(ends[-1])
        assert 4 <= device.writes - before < 20
        assert set(listener.positions) <= set(ends)

    simulate(world, seed=1)


async def test_an_unexpected_error_before_a_write_ends_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is released after it: what the write was to hold would be passed over."""

    def broken(*_: object) -> None:
        raise ZeroDivisionError("a defect")

    device = await new_device()
    wal = await open_small(device)
    listener = await started(wal, 1)
    monkeypatch.setattr(device, "write", broken)
    wal.append(1, 1, 0, 1, b"lost")
    assert isinstance(await listener.wait_failed(), WalFailed)
    monkeypatch.undo()
    with pytest.raises(WalFailed):
        wal.append(1, 1, 1, 1, b"refused")
    assert listener.positions == []


async def test_an_unexpected_error_before_a_write_that_waited_for_another_ends_the_log(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What waits for it would have no response, and a stop would wait for its time limit."""

    def broken(*_: object) -> None:
        raise MemoryError

    device = await new_device()
    wal = await open_small(device, replace(SMALL, writes_in_flight_max=1))
    listener = await started(wal, 1)
    wal.append(1, 1, 0, 1, b"under way")
    await asyncio.sleep(0)
    wal.append(1, 1, 1, 1, b"waits")
    monkeypatch.setattr(device, "write", broken)
    assert "MemoryError" in str(await listener.wait_failed())
    monkeypatch.undo()
    async with asyncio.timeout(10):
        await wal.close()


async def test_an_append_that_meets_an_unexpected_error_of_a_write_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise MemoryError

    device = await new_device()
    wal = await open_small(device)
    listener = await started(wal, 1)
    wal.append(1, 1, 0, 1, b"x" * 10_000)
    monkeypatch.setattr(device, "write", broken)
    with pytest.raises(WalFailed, match="MemoryError"):
        wal.append(1, 1, 1, 1, b"x" * 10_000)  # begins the next block
    assert "MemoryError" in str(await listener.wait_failed())


@pytest.mark.parametrize("error", [OSError(errno.ENOMEM, "Cannot allocate memory"), MemoryError()])
async def test_an_append_without_memory_for_a_block_may_be_tried_again(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_size: int) -> None:
        raise error

    device = await new_device()
    wal = await open_small(device, replace(SMALL, index_interval=64 * 1024))
    listener = await started(wal, 1)
    refused = end = 0
    for number in range(20):
        with monkeypatch.context() as patched:
            patched.setattr(block, "aligned_buffer", broken)
            try:
                end = wal.append(1, 1, number, 1, b"x" * 10_000)
            except WalFull:
                refused += 1
                patched.undo()
                end = wal.append(1, 1, number, 1, b"x" * 10_000)
        if number % 4 == 3:
            await listener.wait_released(end)
    await listener.wait_released(end)
    assert refused > 3
    wal = await open_small(device.crash())
    assert [one.base_offset for one in await recovered(wal)] == list(range(20))


def test_writes_in_flight_stay_within_the_window() -> None:
    async def world() -> None:
        device = await new_device(seed=3, latency_s=(0.01, 0.01))
        tight = BlockWalSettings(block_size=4096, window_size=8192, writes_in_flight_max=8)
        wal = await open_small(device, tight)
        listener = await started(wal, 1)
        before = device.writes
        end = [wal.append(1, 1, i, 1, b"x" * 3900) for i in range(10)][-1]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert device.writes - before == 2
        await listener.wait_released(end)

    simulate(world, seed=1)


async def test_what_goes_to_the_device_is_counted() -> None:
    device = await new_device()
    wal = await open_small(device)
    listener = await started(wal, 1)
    before, headers = device.writes, wal.stats.header_writes
    ends = [await append_released(wal, listener, b"x" * 5000) for _ in range(3)]
    assert (wal.stats.writes, wal.stats.written_bytes) == (3, 3 * 2 * SECTOR)
    await wal.trim(ends[0])
    assert wal.stats.header_writes == headers + 1
    assert wal.stats.writes + 1 == device.writes - before
    assert wal.stats.in_flight == 0


async def test_what_waits_to_be_written_is_bounded() -> None:
    wal = await open_small(await new_device(), replace(SMALL, pending_size_max=60_000))
    listener = await started(wal, 1)
    end = 0
    with pytest.raises(WalFull, match="wait to be written"):
        for _ in range(10):
            end = wal.append(1, 1, 0, 1, b"x" * 17_000)
    await listener.wait_released(end)
    await append_released(wal, listener, b"x" * 17_000)


async def test_a_bad_argument_leaves_no_trace() -> None:
    device = await new_device()
    wal = await open_small(device)
    listener = await started(wal, 1)
    await append_released(wal, listener, b"first")
    position = wal.next_position
    with pytest.raises(Exception, match="int"):
        wal.append(2**70, 1, 0, 1, b"never")
    assert (wal.next_position, wal.pending_bytes) == (position, 0)
    await append_released(wal, listener, b"z" * 20_000)  # a block of its own
    with pytest.raises(Exception, match="int"):
        wal.append(2**70, 1, 0, 1, b"never")
    await wal.close()
    found = await recovered(await open_small(device))
    assert [len(r.payload) for r in found] == [5, 20_000]


# ------------------------------------------------------------------ errors of the device


@pytest.mark.parametrize("nth", range(4))
def test_after_a_write_error_nothing_is_released(nth: int) -> None:
    async def world() -> None:
        device = await new_device(seed=nth, latency_s=(0.001, 0.01))
        wal = await open_small(device)
        listener = await started(wal, 1)
        device.fail_write(after=nth)
        for i in range(12):
            wal.append(1, 1, i, 1, b"x" * 9000)
        error = await listener.wait_failed()
        assert isinstance(error, WalFailed)
        assert "memory-device" in str(error)
        released = wal.released_position
        await asyncio.sleep(1)
        assert (len(listener.errors), wal.released_position) == (1, released)
        with pytest.raises(WalFailed):
            wal.append(1, 1, 99, 1, b"more")
        with pytest.raises(WalFailed):
            await wal.trim(released)
        await wal.close()
        found = await recovered(await open_small(device.crash()))
        assert [r.base_offset for r in found] == list(range(len(found)))
        assert not released or found[-1].end_position >= released

    simulate(world, seed=nth)


async def test_an_error_of_the_header_write_fails_the_log() -> None:
    device = await new_device()
    wal = await open_small(device)
    listener = await started(wal, 1)
    ends = [await append_released(wal, listener, b"x" * 3000) for _ in range(4)]
    device.fail_write()
    with pytest.raises(WalFailed, match="header"):
        await wal.trim(ends[1])
    assert len(listener.errors) == 1
    with pytest.raises(WalFailed):
        wal.append(1, 1, 0, 1, b"")
    found = await recovered(await open_small(device.crash()))
    assert [r.end_position for r in found] in (ends, ends[2:])


async def test_a_failed_start_leaves_the_log_as_it_was() -> None:
    device, ends = await written()
    wal = await open_small(device)
    await recovered(wal)
    device.fail_write()
    with pytest.raises(WalFailed):
        await wal.start(epoch=2, listener=Listener())
    found = await recovered(await open_small(device.crash()))
    assert [r.end_position for r in found] == ends


async def test_a_read_error_in_recovery_is_not_the_end_of_the_log() -> None:
    device, ends = await written()
    wal = await open_small(device)
    device.reads_fail = True
    with pytest.raises(WalFailed, match="simulated"):
        await recovered(wal)
    with pytest.raises(RuntimeError):
        await wal.start(epoch=2, listener=Listener())
    device.reads_fail = False
    assert [r.end_position for r in await recovered(wal)] == ends


def test_a_cancelled_trim_is_waited_for_by_the_next() -> None:
    async def world() -> None:
        device = await new_device(latency_s=(0.01, 0.02))
        wal = await open_small(device)
        listener = await started(wal, 1)
        ends = [await append_released(wal, listener, b"x" * 3000) for _ in range(4)]
        first = asyncio.create_task(wal.trim(ends[0]))
        await asyncio.sleep(0.001)
        first.cancel()
        second = asyncio.create_task(wal.trim(ends[2]))
        while not second.done():
            assert len(device._in_flight) <= 1, "two slots in flight could both be torn"
            await asyncio.sleep(0.001)
        assert slice_header(device).trimmed == ends[2]
        assert slice_header(device).generation >= 4
        assert [r.end_position for r in await recovered(await open_small(device.crash()))] == [
            ends[3]
        ]

    simulate(world, seed=1)


# ------------------------------------------------------------------ crashes


async def test_new_writes_that_end_where_stale_records_begin() -> None:
    """Epoch 1 leaves a hole with whole records beyond it; epoch 2 writes right up to them.

    Recovery must stop at the end of epoch 2, even if the new epoch begins at the hole itself.
    """
    device, ends = await written(count=6)
    hole = sector_up(ends[1])
    header = slice_header(device)
    forged = replace(
        header,
        generation=header.generation + 1,
        is_clean=True,
        released=ends[1],
        segments=(replace(header.segments[0], end=ends[1]),),
    )
    slot = SLICES_START + forged.generation % 2 * SECTOR
    device.content[slot : slot + SECTOR] = forged.encode()
    wal = await open_small(device)
    listener = await started(wal, 2)
    assert wal.next_position == hole, "a clean log goes on at once"
    end = await append_released(wal, listener, bytes(5000))
    assert sector_up(end) == sector_up(ends[2]), "it ends exactly where a stale record begins"
    found = await recovered(await open_small(device.crash()))
    assert [r.end_position for r in found] == [*ends[:2], end]


async def test_an_epoch_begins_beyond_the_window_of_a_crashed_one() -> None:
    device, ends = await written()
    wal = await open_small(device)
    await started(wal, 2)
    assert wal.next_position == sector_up(ends[-1]) + SMALL.window_size
    await wal.close()
    wal = await open_small(device.crash())
    await started(wal, 3)
    assert wal.next_position == sector_up(ends[-1]) + SMALL.window_size, "a clean one leaves none"


async def test_crashes_without_appends_take_no_room() -> None:
    device = await new_device()
    for epoch in range(1, 60):
        await started(await open_small(device), epoch)
        device = device.crash()
    wal = await open_small(device)
    listener = await started(wal, 60)
    for _ in range(5):
        await append_released(wal, listener, b"x" * 40_000)


async def test_crashes_before_any_upload_fill_the_ring_and_lose_nothing() -> None:
    device = await new_device()
    written_offsets: list[int] = []
    for epoch in range(1, 40):
        wal = await open_small(device)
        listener = await started(wal, epoch)
        try:
            end = wal.append(1, 1, epoch, 1, b"x" * 100)
        except WalFull:
            break
        await listener.wait_released(end)
        written_offsets.append(epoch)
        device = device.crash()
    assert 5 < len(written_offsets) < 30
    wal = await open_small(device.crash())
    found = await recovered(wal)
    assert [r.base_offset for r in found] == written_offsets
    await wal.trim(found[-1].end_position)
    listener = Listener()
    await wal.start(epoch=100, listener=listener)
    await append_released(wal, listener, b"x" * 40_000)


async def test_the_clean_flag_is_down_while_the_log_is_in_use() -> None:
    device = await new_device()
    assert slice_header(device).is_clean
    for epoch in (1, 2):
        wal = await open_small(device)
        listener = await started(wal, epoch)
        assert not slice_header(device).is_clean
        await wal.trim(await append_released(wal, listener, b"x"))
        assert not slice_header(device).is_clean
        await wal.close()
        assert slice_header(device).is_clean


# ------------------------------------------------------------------ damage


async def test_damage_below_the_released_position_is_an_error_that_says_where() -> None:
    device, ends = await written(count=8)
    intact = bytes(device.content)
    rng = random.Random(2)
    for start in (sector_up(end) for end in [0, *ends[:6]]):  # a later block bears witness
        for byte in [0, 5, 7, 9, 13, 17, 25, 33, 41, 45, *rng.sample(range(48, 5081), 6)]:
            device.content[:] = intact
            device.content[RING_START + start + byte] ^= 1 << rng.randrange(8)
            damaged = bytes(device.content)
            with pytest.raises(WalCorrupted, match=r"memory-device.*acknowledged data"):
                await recovered(await open_small(device))
            assert device.content == damaged, "recovery changes nothing"
            device = device.crash()
    device.content[:] = intact
    assert [r.end_position for r in await recovered(await open_small(device))] == ends


async def test_a_block_lost_as_a_whole_is_damage_too() -> None:
    device, ends = await written()
    hole = RING_START + sector_up(ends[2])
    device.content[hole : hole + 2 * SECTOR] = bytes(2 * SECTOR)
    with pytest.raises(WalCorrupted, match=str(ends[2])):
        await recovered(await open_small(device))


async def test_the_newest_block_may_be_cut_off() -> None:
    device, ends = await written()
    last = RING_START + sector_up(ends[-2])
    device.content[last + SECTOR] ^= 1
    found = await recovered(await open_small(device))
    assert [r.end_position for r in found] == ends[:-1]


async def test_after_a_clean_shutdown_the_end_is_known_exactly() -> None:
    device, ends = await written()
    wal = await open_small(device)
    await started(wal, 2)
    await wal.close()
    last = RING_START + sector_up(ends[-2])
    device.content[last + SECTOR] ^= 1
    with pytest.raises(WalCorrupted):
        await recovered(await open_small(device.crash()))


async def test_a_zeroed_record_inside_a_block_does_not_join_its_neighbours() -> None:
    device = await new_device()
    wal = await open_small(device)
    listener = await started(wal, 1)
    first = wal.append(1, 1, 0, 1, b"a" * 3000)
    second = wal.append(1, 1, 1, 1, b"b" * 900)
    assert second < SECTOR, "the zeros will look like the end of the block"
    await listener.wait_released(second)
    await append_released(wal, listener, b"c" * 100)
    device = device.crash()
    device.content[RING_START + first : RING_START + second] = bytes(second - first)
    with pytest.raises(WalCorrupted):
        await recovered(await open_small(device))


async def test_a_header_slot_lost_falls_back_to_the_other() -> None:
    device, ends = await written()
    wal = await open_small(device)
    listener = await started(wal, 2)
    await wal.trim(ends[1])
    await wal.trim(ends[2])
    newer = SLICES_START + slice_header(device).generation % 2 * SECTOR
    device = device.crash()
    device.content[newer + 100] ^= 1
    found = await recovered(await open_small(device))
    assert [r.end_position for r in found] == ends[2:], "one trim older"
    assert not listener.errors
    device = device.crash()
    device.content[SLICES_START : SLICES_START + 2 * SECTOR] = bytes(2 * SECTOR)
    with pytest.raises(WalCorrupted, match="no valid header"):
        await open_small(device)


@pytest.mark.parametrize("slot", [0, SECTOR])
async def test_either_header_slot_knows_an_epoch_before_its_first_append(slot: int) -> None:
    """Else the loss of one slot would hide all that the epoch wrote, and nobody would know."""
    device, ends = await written()
    wal = await open_small(device)
    listener = await started(wal, 2)
    ends.append(await append_released(wal, listener, b"of the new epoch"))
    device = device.crash()
    device.content[SLICES_START + slot + 100] ^= 1
    assert [r.end_position for r in await recovered(await open_small(device))] == ends


async def test_a_payload_that_imitates_a_record_is_none() -> None:
    """A producer may send bytes of a WAL record it has seen: the checksum's seed is not his."""
    device = await new_device(seed=1)
    wal = await open_small(device)
    listener = await started(wal, 1)
    await append_released(wal, listener, b"x" * 100)
    stranger = await new_device(seed=2)
    wal = await open_small(stranger)
    await append_released(wal, await started(wal, 1), b"x" * 100)
    record = bytes(stranger.content[RING_START : RING_START + SECTOR])
    seen = memoryview(record)[: RECORD.size]
    assert isinstance(wal, BlockWal)
    assert read_record_header(seen, wal._ring.seed) is not None
    device = device.crash()
    device.content[RING_START : RING_START + SECTOR] = record
    assert await recovered(await open_small(device)) == []


@pytest.mark.parametrize("seed", range(12))
def test_what_a_recovery_has_read_survives_a_later_loss_of_power(seed: int) -> None:
    """A node commits how far its log reaches by what it read there: its next start finds as much,
    though the last writes of the life before were in a cache of the disk alone.
    """

    async def world() -> None:
        rng = random.Random(seed)
        platter = Platter(256 * 1024, rng=rng, latency_s=(0.0001, 0.01))
        image = volume_image(
            volume_id=b"v" * 16, capacity=platter.capacity, node_id=0, host_id="", cluster_id=""
        )
        await format_device(platter.attach("mkfs"), image)
        wal = await open_slice(platter.attach("first"), node_id=0, settings=SMALL)
        listener = await started(wal, 1)
        kept = await append_released(wal, listener, b"kept" * 1000)
        for offset in range(1, 9):
            wal.append(1, 1, offset, 1, b"perhaps" * 500)
            await asyncio.sleep(0.001)
        platter.attach("second").lose()
        reached = []
        for name in ("third", "fourth"):
            wal = await open_slice(platter.attach(name), node_id=0, settings=SMALL)
            found = await wal.identify(reach=1 << 40)
            reached.append((found.end, [one.base_offset for one in await recovered(wal)]))
            platter.attach("a process that ends at once").lose()
            platter.lose_power()
        assert reached[0] == reached[1]
        assert reached[0][0] >= kept

    simulate(world, seed=seed)
