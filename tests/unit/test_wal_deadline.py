"""A block WAL on a device that does not answer: the log ends in time, and says nothing untrue."""

import asyncio
import random
import threading
from collections.abc import Awaitable, Callable

import pytest

from lakehead.storage.errors import StorageError, WalFailed
from lakehead.storage.wal import BlockWal, BlockWalSettings
from lakehead.storage.wal.block_takeover import take_slice
from lakehead.storage.wal.deadline import Deadline, DeadlineDevice, DeviceStuck
from lakehead.storage.wal.volume import format_device, open_slice, volume_image
from tests.simulation.hostile_device import Attachment, Platter
from tests.simulation.lives import Life
from tests.simulation.loop import SimulationLoop, simulate
from tests.support.wal_tools import Listener, append_released, recovered, started

CAPACITY = 256 * 1024
TIMEOUT_S = 4.0
LATEST_S = TIMEOUT_S * 10 / 8
"""A tick may have begun just before the call did."""
SETTINGS = BlockWalSettings(block_size=16 * 1024, window_size=32 * 1024, device_timeout_s=TIMEOUT_S)


class Disk:
    """A disk that a log is on, and what its deadline said."""

    def __init__(self, seed: int = 1, latency_s: tuple[float, float] = (0.0001, 0.01)) -> None:
        self.platter = Platter(CAPACITY, rng=random.Random(seed), latency_s=latency_s)
        self.reasons: list[str] = []

    async def format(self) -> None:
        image = volume_image(
            volume_id=b"v" * 16, capacity=CAPACITY, node_id=0, host_id="", cluster_id=""
        )
        await format_device(self.platter.attach("mkfs"), image)

    def attach(self, name: str) -> tuple[Attachment, DeadlineDevice]:
        attachment = self.platter.attach(name)
        deadline = Deadline(name, TIMEOUT_S, self.reasons.append)
        return attachment, DeadlineDevice(attachment, deadline)

    async def open(self, name: str = "owner") -> tuple[Attachment, BlockWal]:
        attachment, device = self.attach(name)
        return attachment, await open_slice(device, node_id=0, settings=SETTINGS)


def run(world: Callable[[], Awaitable[None]], seed: int = 1) -> None:
    async def main() -> None:
        await world()

    simulate(main, seed=seed)


@pytest.mark.parametrize("seed", range(6))
def test_a_write_that_does_not_return_ends_the_log_within_the_deadline(seed: int) -> None:
    async def world() -> None:
        disk = Disk(seed)
        await disk.format()
        attachment, wal = await disk.open()
        listener = await started(wal, 1)
        kept = await append_released(wal, listener, b"kept" * 1000)
        attachment.hang()
        loop = asyncio.get_running_loop()
        began = loop.time()
        for offset in range(1, 9):
            wal.append(1, 1, offset, 1, b"never acknowledged" * 500)
        error = await listener.wait_failed()
        assert TIMEOUT_S <= loop.time() - began <= LATEST_S
        assert isinstance(error, WalFailed)
        assert "does not respond" in str(error)
        with pytest.raises(WalFailed):
            wal.append(1, 1, 9, 1, b"refused")
        with pytest.raises(WalFailed):
            await wal.trim(kept)
        failed_at = loop.time()
        await wal.close()
        assert loop.time() == failed_at, "the end waits for nothing that is stuck"
        assert listener.positions == [kept]
        assert len(listener.errors) == 1
        assert "a write of" in disk.reasons[0]

    run(world, seed)


@pytest.mark.parametrize("what", ["trim", "start", "recover", "close", "open", "take"])
def test_no_other_call_of_a_log_waits_for_a_device_longer_either(what: str) -> None:
    """Header writes, flushes, reads of recovery, and all that opening and taking over do."""

    async def world() -> None:
        disk = Disk()
        await disk.format()
        attachment, device = disk.attach("owner")
        wal = await open_slice(device, node_id=0, settings=SETTINGS)
        listener = await started(wal, 1)
        end = await append_released(wal, listener, b"x" * 5000)
        if what in {"start", "recover", "open", "take"}:
            attachment, device = disk.attach("next")
        if what in {"recover", "start"}:
            wal = await open_slice(device, node_id=0, settings=SETTINGS)
        if what == "start":
            await recovered(wal)
        attachment.hang()
        began = asyncio.get_running_loop().time()
        calls: dict[str, Callable[[], Awaitable[object]]] = {
            "trim": lambda: wal.trim(end),
            "start": lambda: wal.start(epoch=2, listener=Listener()),
            "recover": lambda: recovered(wal),
            "close": wal.close,
            "open": lambda: open_slice(device, node_id=0, settings=SETTINGS),
            "take": lambda: take_slice(
                device, node_id=0, host_id="", cluster_id="", settings=SETTINGS
            ),
        }
        if what == "close":
            await calls[what]()  # the listener was told; there is nothing else to say
            assert isinstance(await listener.wait_failed(), WalFailed)
        else:
            with pytest.raises((StorageError, DeviceStuck), match="has not returned for 4 s"):
                await calls[what]()
        assert asyncio.get_running_loop().time() - began <= LATEST_S
        assert disk.reasons

    run(world)


@pytest.mark.parametrize("seed", range(12))
def test_a_taker_of_a_hung_log_has_all_that_was_acknowledged(seed: int) -> None:
    """Of what was stuck any part may land until the old owner is fenced, and none afterwards."""

    async def world() -> None:
        rng = random.Random(seed)
        disk = Disk(seed)
        await disk.format()
        attachment, wal = await disk.open()
        listener = await started(wal, 1)
        count = rng.randrange(1, 30)
        for offset in range(count):
            wal.append(1, 1, offset, 1, rng.randbytes(rng.randrange(1, 6000)))
            if rng.random() < 0.5:
                await asyncio.sleep(rng.uniform(0, 0.02))
        attachment.hang()
        stuck_from = wal.next_position
        wal.append(1, 1, count, 1, b"stuck" * 1000)
        await listener.wait_failed()
        acknowledged = max(listener.positions, default=0)
        assert acknowledged <= stuck_from
        taken = await take_slice(
            disk.attach("taker")[1], node_id=0, host_id="", cluster_id="", settings=SETTINGS
        )
        records = await recovered(taken)
        assert [r.base_offset for r in records] == list(range(len(records)))
        assert not acknowledged or records[-1].end_position >= acknowledged
        next_listener = Listener()
        await taken.start(epoch=2, listener=next_listener)
        await append_released(taken, next_listener, b"by the taker")
        await wal.close()
        assert listener.positions == [] or listener.positions[-1] == acknowledged
        again = await take_slice(
            disk.attach("next")[1], node_id=0, host_id="", cluster_id="", settings=SETTINGS
        )
        assert [r.base_offset for r in await recovered(again)] == [
            *(r.base_offset for r in records),
            0,
        ]

    run(world, seed)


def test_a_stuck_write_that_returns_later_releases_nothing() -> None:
    async def world() -> None:
        disk = Disk()
        await disk.format()
        attachment, wal = await disk.open()
        listener = await started(wal, 1)
        attachment.hang()
        wal.append(1, 1, 0, 1, b"stuck")
        await listener.wait_failed()
        attachment.heal()
        await asyncio.sleep(60)
        assert listener.positions == []
        assert len(listener.errors) == 1
        with pytest.raises(WalFailed):
            wal.append(1, 1, 1, 1, b"refused")

    run(world)


def test_a_slow_device_is_not_a_stuck_one() -> None:
    async def world() -> None:
        disk = Disk(latency_s=(0.3 * TIMEOUT_S, 0.95 * TIMEOUT_S))
        await disk.format()
        _, wal = await disk.open()
        listener = await started(wal, 1)
        for _ in range(20):
            await append_released(wal, listener, b"slow" * 1000)
        await wal.trim(listener.positions[-1])
        await wal.close()
        assert not disk.reasons
        assert not listener.errors

    run(world)


def test_a_process_that_was_stopped_looks_what_has_returned_before_it_judges() -> None:
    """After SIGCONT the clock says that all deadlines have passed, and the writes are done."""

    async def world() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulationLoop)
        disk = Disk()
        await disk.format()
        life = Life(loop, "node")
        ended = asyncio.Event()
        listener = Listener()

        async def live() -> None:
            _, wal = await disk.open()
            await recovered(wal)
            await wal.start(epoch=1, listener=listener)
            for offset in range(200):
                end = wal.append(1, 1, offset, 1, b"x" * 3000)
                await listener.wait_released(end)
                await wal.trim(end)
            ended.set()

        life.spawn(live(), "live")
        rng = random.Random(1)
        while not ended.is_set():
            await asyncio.sleep(rng.uniform(0.001, 0.3))
            life.freeze()
            await asyncio.sleep(5 * TIMEOUT_S)
            life.thaw()
        assert not disk.reasons
        assert not listener.errors

    run(world)


def test_a_large_transfer_has_the_time_that_its_size_takes() -> None:
    async def world() -> None:
        deadline = Deadline("disk", TIMEOUT_S)
        loop = asyncio.get_running_loop()
        for size, latest_s in ((4096, LATEST_S), (100_000_000, LATEST_S + 10.5)):
            began = loop.time()
            call: asyncio.Future[None] = loop.create_future()
            deadline.watch(call, "a write", size)
            with pytest.raises(DeviceStuck):
                await call
            assert latest_s - 1.5 <= loop.time() - began <= latest_s

    run(world)


class _BlockingDevice(Attachment):
    """Its writes block the thread that starts them, as `io_submit(2)` may."""

    released = threading.Event()

    def write(self, offset: int, buffer: memoryview) -> asyncio.Future[None]:
        self.released.wait(60)
        return super().write(offset, buffer)


def test_a_write_whose_start_blocks_the_event_loop_is_noticed_by_a_thread() -> None:
    platter = Platter(CAPACITY, rng=random.Random(1), latency_s=(0, 0))
    blocking = _BlockingDevice(platter, "owner")
    reasons: list[str] = []

    def stuck(reason: str) -> None:
        reasons.append(reason)
        blocking.released.set()

    async def main() -> None:
        device = DeadlineDevice(blocking, Deadline("disk", 0.2, stuck))
        device.watch_submissions()
        await device.write(0, memoryview(bytes(4096)))
        await device.close()

    asyncio.run(main())
    assert reasons == ["disk: a write of 4096 bytes at 0 has not returned for 0.2 s"]
