"""The block WAL against a model: random appends, trims, crashes and errors, over many laps.

After each crash, recovery must give a run of the records that were appended: each once, in order,
beginning no later than what a trim asked for and no earlier than what a trim confirmed, and ending
no earlier than what was released. Whatever it gives is then part of the log for good.
"""

import asyncio
import random
from dataclasses import dataclass, field

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lakehead.storage.errors import WalFailed, WalFull
from lakehead.storage.wal import BlockWal, BlockWalSettings, WalRecord
from lakehead.storage.wal.block_format import SECTOR
from lakehead.storage.wal.memory_device import MemoryDevice
from lakehead.storage.wal.protocol import WalPart
from tests.simulation.loop import simulate
from tests.support.encryption_keys import MemoryKeys
from tests.support.repetitions import examples
from tests.support.wal_tools import Listener, new_device, open_small

RING_SECTORS = 32


@dataclass(frozen=True)
class Append:
    size: int


@dataclass(frozen=True)
class Fill:
    """Append until the ring is full, as long as the device takes it."""

    size: int


@dataclass(frozen=True)
class Pass:
    seconds: float


@dataclass(frozen=True)
class Trim:
    share: float
    """Of the released records that are kept."""
    wait: bool


@dataclass(frozen=True)
class Break:
    after: int


@dataclass(frozen=True)
class Life:
    """One process: it recovers (perhaps dying meanwhile), does things, and ends."""

    deaths_in_recovery: int
    trims_before_start: bool
    dies_in_start: float | None
    steps: tuple[Append | Fill | Pass | Trim | Break, ...]
    closes: bool


sizes = st.one_of(
    st.integers(0, 300), st.integers(3000, 9000), st.integers(15_000, 20_000), st.just(50_000)
)
steps = st.one_of(
    st.builds(Append, sizes),
    st.builds(Append, sizes),
    st.builds(Append, sizes),
    st.builds(Fill, st.integers(0, 6000)),
    st.builds(Pass, st.sampled_from([0.0, 0.0005, 0.002, 0.02])),
    st.builds(Trim, st.sampled_from([0.3, 0.7, 1.0]), st.booleans()),
    st.builds(Break, st.integers(0, 3)),
)
lives = st.builds(
    Life,
    deaths_in_recovery=st.sampled_from([0, 0, 0, 1, 2]),
    trims_before_start=st.booleans(),
    dies_in_start=st.sampled_from([None, None, None, 0.0, 0.003, 0.006]),
    steps=st.lists(steps, max_size=40).map(tuple),
    closes=st.sampled_from([False, False, True]),
)


@dataclass
class Model:
    """What is known about the log. Records are (end position, stream epoch, offset, payload)."""

    log: list[tuple[int, int, int, bytes]] = field(default_factory=list)
    released: int = 0
    trim_asked: int = 0
    trim_confirmed: int = 0
    offset: int = 0

    def check(self, records: list[WalRecord]) -> None:
        got = [(r.end_position, r.epoch, r.base_offset, bytes(r.payload)) for r in records]
        first = next((i for i, r in enumerate(self.log) if got and r == got[0]), None)
        if first is None:
            assert not got, "recovered what was never appended"
            assert all(r[0] <= self.trim_asked or r[0] > self.released for r in self.log)
        else:
            last = first + len(got)
            assert got == self.log[first:last], "a run of what was appended, in order, once"
            assert all(r[0] <= self.trim_asked for r in self.log[:first]), "lost at the front"
            assert all(r[0] > self.trim_confirmed for r in got), "trimmed, yet recovered"
            assert all(r[0] > self.released for r in self.log[last:]), "lost at the end"
        self.log = got


class World:
    def __init__(
        self, device: MemoryDevice, wal_settings: BlockWalSettings, keys: MemoryKeys | None
    ) -> None:
        self.device = device
        self.keys = keys
        self.settings = wal_settings
        self.model = Model()
        self.epoch = 0
        self.trims: list[asyncio.Task[None]] = []

    async def live(self, life: Life) -> None:
        wal = await self.recovered(life)
        listener = Listener()
        self.epoch += 1
        starting = asyncio.create_task(wal.start(epoch=self.epoch, listener=listener))
        if life.dies_in_start is not None:
            await asyncio.sleep(life.dies_in_start)
            if not starting.done():
                await self.crash(starting)
                return
        await starting
        self.model.released = wal.released_position
        for step in life.steps:
            if not listener.errors:
                await self.take(step, wal, listener)
        if life.closes and not listener.errors:
            await wal.close()
            self.note_released(listener)
            if not listener.errors:
                assert not self.model.log or self.model.released >= self.model.log[-1][0]
        self.note_released(listener)
        await self.crash()

    async def opened(self) -> BlockWal:
        """Open the log, in a process that has no data key yet."""
        data_keys = None if self.keys is None else self.keys.data_keys(seed=self.epoch)
        return await open_small(self.device, self.settings, data_keys)

    async def recovered(self, life: Life) -> BlockWal:
        for death in range(life.deaths_in_recovery):
            wal = await self.opened()
            async for _ in wal.recover():
                if death % 2:
                    break
            await self.crash()
        wal = await self.opened()
        parts = [part async for part in wal.survey()]
        records = [record async for record in wal.recover()]
        self.model.check(records)
        assert surveyed(parts) == [(one.epoch, one.base_offset) for one in records]
        assert not parts or parts[-1].end_position == records[-1].end_position
        if records and life.trims_before_start:
            middle = records[len(records) // 2].end_position
            self.model.trim_asked = max(self.model.trim_asked, middle)
            await wal.trim(middle)
            self.model.trim_confirmed = max(self.model.trim_confirmed, middle)
        return wal

    async def take(
        self, step: Append | Fill | Pass | Trim | Break, wal: BlockWal, listener: Listener
    ) -> None:
        model = self.model
        match step:
            case Append(size):
                self.append(wal, size)
            case Fill(size):
                while not listener.errors and self.append(wal, size):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            case Pass(seconds):
                await asyncio.sleep(seconds)
                self.note_released(listener)
            case Trim(share, wait):
                self.note_released(listener)
                durable = [r[0] for r in model.log if r[0] <= model.released]
                if durable:
                    position = durable[min(int(len(durable) * share), len(durable) - 1)]
                    model.trim_asked = max(model.trim_asked, position)
                    trim = asyncio.create_task(self.trim(wal, position))
                    self.trims.append(trim)
                    if wait:
                        await trim
                    else:
                        await asyncio.sleep(0)
            case Break(after):
                self.device.fail_write(after)

    def append(self, wal: BlockWal, size: int) -> bool:
        model = self.model
        payload = b"%d" % model.offset * (size // 4 + 1)
        before = wal.next_position
        try:
            end = wal.append(1, self.epoch, model.offset, 1, payload)
        except WalFull:
            assert wal.next_position == before, "no trace"
            return False
        model.log.append((end, self.epoch, model.offset, payload))
        model.offset += 1
        return True

    async def trim(self, wal: BlockWal, position: int) -> None:
        try:
            await wal.trim(position)
        except WalFailed:
            return
        self.model.trim_confirmed = max(self.model.trim_confirmed, position)

    def note_released(self, listener: Listener) -> None:
        if listener.positions:
            self.model.released = listener.positions[-1]

    async def crash(self, *tasks: asyncio.Task[None]) -> None:
        self.device = self.device.crash()
        for task in (*tasks, *self.trims):
            task.cancel()
        await asyncio.sleep(0)
        self.trims.clear()


def surveyed(parts: list[WalPart]) -> list[tuple[int, int]]:
    """Epoch and offset of each record, all of one stream, that a survey says there are."""
    found = []
    for part in parts:
        if part.record is not None:
            found.append((part.record.epoch, part.record.base_offset))
        for span in part.ranges:
            found += [(span.epoch, at) for at in range(span.start_offset, span.end_offset)]
    return found


@settings(max_examples=examples(300), deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    lives=st.lists(lives, min_size=1, max_size=8),
    seed=st.integers(0, 2**32),
    slots=st.sampled_from([1, 2, 4]),
    block_size=st.sampled_from([4096, 8192]),
    is_encrypted=st.booleans(),
    index_interval=st.sampled_from([0, 16 * 1024, 32 * 1024]),
    ring_sectors=st.integers(RING_SECTORS, RING_SECTORS + 8),
)
def test_what_was_released_is_recovered_once_and_in_order(
    lives: list[Life],
    seed: int,
    slots: int,
    block_size: int,
    is_encrypted: bool,
    index_interval: int,
    ring_sectors: int,
) -> None:
    async def world() -> None:
        ring_length = ring_sectors * SECTOR
        device = await new_device(ring_length=ring_length, seed=seed, latency_s=(0.0001, 0.005))
        small = BlockWalSettings(
            block_size=block_size,
            window_size=16 * 1024,
            writes_in_flight_max=slots,
            index_interval=index_interval,
        )
        keys = MemoryKeys(random.Random(seed)) if is_encrypted else None
        state = World(device, small, keys)
        for life in lives:
            await state.live(life)
        wal = await state.opened()
        state.model.check([record async for record in wal.recover()])

    simulate(world, seed=seed)
