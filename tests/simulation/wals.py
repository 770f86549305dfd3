"""The write-ahead logs that a simulated node may have, and what may go wrong with each."""

from __future__ import annotations

import errno
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from lakehead.storage.errors import SettingsError
from lakehead.storage.object_store.protocol import ObjectStore
from lakehead.storage.wal import BlockWal, BlockWalSettings, MemoryWal, WriteAheadLog
from lakehead.storage.wal.block_takeover import take_slice
from lakehead.storage.wal.deadline import Deadline, DeadlineDevice
from lakehead.storage.wal.object.batching import BatchingSettings
from lakehead.storage.wal.object.hedging import HedgingSettings
from lakehead.storage.wal.object.log import ObjectWal
from lakehead.storage.wal.object.settings import ObjectWalSettings
from lakehead.storage.wal.protocol import WalOwner
from lakehead.storage.wal.volume import format_device, open_slice, volume_image
from tests.simulation.bucket import Bucket
from tests.simulation.encryption import WorldKeys
from tests.simulation.hostile_device import Attachment, Platter
from tests.simulation.lives import Life

OpenWal = Callable[[WalOwner], Awaitable[WriteAheadLog]]


class WalWorld(Protocol):
    """What a WAL needs of its world."""

    rng: random.Random
    other_bucket: Bucket

    keys: WorldKeys | None

    def store_of(self, name: str, bucket: Bucket | None = None) -> ObjectStore:
        """Return a bucket as a process of this name reaches it."""


class NodeWal(Protocol):
    """What of a node's WAL outlives its processes."""

    async def prepare(self) -> None:
        """Make it, empty."""

    def opener(self, life: Life) -> OpenWal:
        """Return what opens it for a process."""

    async def take(self, life: Life, owner: WalOwner) -> WriteAheadLog | None:
        """Open it for a process of another node, once its own can write no more; None: all of it is
        in the cluster's store. Raises SettingsError: others do not reach it.
        """

    async def wrong_log(self, rng: random.Random) -> NodeWal | None:
        """Return another log that the node may be started on by mistake: an empty one, or an older
        copy. None: there is no other.
        """

    def note_dead(self, rng: random.Random) -> None:
        """Take note of what is there while no process has it: a snapshot, perhaps."""

    def break_soon(self) -> None:
        """Let one of the next writes of the present process fail, if writes can."""

    def slow_down(self) -> None:
        """Let writes of the present process take long, if they can."""

    def hang(self) -> None:
        """Let no call of the present process to a device return any more, if it has one."""

    def lose_power(self) -> None:
        """Lose what a power loss loses, beyond what a dead process does."""


class DiskWal:
    """A block WAL on a disk of its own."""

    _CAPACITY = 256 * 1024
    _settings = BlockWalSettings(
        block_size=8 * 1024, window_size=32 * 1024, index_interval=32 * 1024
    )

    def __init__(self, world: WalWorld) -> None:
        rng = self._rng = world.rng
        self._world = world
        self._platter = Platter(self._CAPACITY, rng=rng, latency_s=(0.0001, 0.01))
        self._snapshot: Platter | None = None

    async def prepare(self, volume_id: bytes = bytes(16)) -> None:
        """See `NodeWal`."""
        image = volume_image(
            volume_id=volume_id, capacity=self._CAPACITY, node_id=0, host_id="", cluster_id=""
        )
        await format_device(self._platter.attach("mkfs"), image)

    def opener(self, life: Life) -> OpenWal:
        """See `NodeWal`."""

        async def open_wal(_: WalOwner) -> WriteAheadLog:
            wal = await open_slice(self._bounded(life), node_id=0, settings=self._settings)
            return self._with_keys(wal, life)

        return open_wal

    async def take(self, life: Life, owner: WalOwner) -> WriteAheadLog | None:
        """See `NodeWal`: to attach the disk is to preempt who had it."""
        device = self._bounded(life)
        wal = await take_slice(
            device, node_id=0, host_id="", cluster_id="", settings=self._settings
        )
        return self._with_keys(wal, life)

    async def wrong_log(self, rng: random.Random) -> NodeWal | None:
        """See `NodeWal`."""
        other = DiskWal(self._world)
        if self._snapshot is not None and rng.random() < 0.8:
            other._platter = self._snapshot.copy()
        else:
            await other.prepare(rng.randbytes(16))
        return other

    def note_dead(self, rng: random.Random) -> None:
        """See `NodeWal`."""
        if rng.random() < (0.5 if self._snapshot is None else 0.1):
            self._snapshot = self._platter.copy()

    def _with_keys(self, wal: BlockWal, life: Life) -> BlockWal:
        if self._world.keys is not None:
            wal.use_keys(self._world.keys.of(life.name))
        return wal

    def _bounded(self, life: Life) -> DeadlineDevice:
        attachment = self._attach(life)
        return DeadlineDevice(
            attachment, Deadline(attachment.name, self._settings.device_timeout_s)
        )

    def _attach(self, life: Life) -> Attachment:
        attachment = self._platter.attach(life.name)
        life.on_death.append(attachment.lose)
        return attachment

    def break_soon(self) -> None:
        """See `NodeWal`."""
        if self._platter.attached is not None:
            error = self._rng.choice([errno.EIO, errno.ENOSPC])
            self._platter.attached.fail_write(self._rng.randrange(10), error)

    def slow_down(self) -> None:
        """See `NodeWal`."""
        if self._platter.attached is not None:
            self._platter.attached.slowness = 100.0

    def hang(self) -> None:
        """See `NodeWal`."""
        if self._platter.attached is not None:
            self._platter.attached.hang()

    def lose_power(self) -> None:
        """See `NodeWal`."""
        if self._platter.attached is None:
            self._platter.lose_power()


class ProcessWal:
    """The WAL in memory, as if its memory outlived the process."""

    def __init__(self, world: WalWorld) -> None:
        self._wal = MemoryWal(capacity=128 * 1024)

    async def prepare(self) -> None:
        """See `NodeWal`."""

    def opener(self, life: Life) -> OpenWal:
        """See `NodeWal`."""

        async def open_wal(_: WalOwner) -> WriteAheadLog:
            self._wal = self._wal.reopen()
            return self._wal

        return open_wal

    async def take(self, life: Life, owner: WalOwner) -> WriteAheadLog | None:
        """See `NodeWal`."""
        raise SettingsError("nobody reaches the memory of another process")

    async def wrong_log(self, rng: random.Random) -> NodeWal | None:
        """See `NodeWal`."""
        return None

    def note_dead(self, rng: random.Random) -> None:
        """See `NodeWal`."""

    def break_soon(self) -> None:
        """See `NodeWal`."""
        self._wal.break_with(OSError(errno.EIO, "simulated"))

    def slow_down(self) -> None:
        """See `NodeWal`."""

    def hang(self) -> None:
        """See `NodeWal`."""

    def lose_power(self) -> None:
        """See `NodeWal`."""


class BucketWal:
    """The object WAL: in the world's bucket, or in another one that all nodes share."""

    def __init__(self, world: WalWorld, other: Bucket | None = None) -> None:
        self._world = world
        self._other = other
        self._snapshot: Bucket | None = None
        self._settings = ObjectWalSettings(
            capacity=128 * 1024,
            put_timeout_s=world.rng.choice([0.1, 5.0]),
            batching=BatchingSettings(
                object_size=4 * 1024, object_size_max=8 * 1024, linger_s=0.004, budget=0
            ),
            hedging=HedgingSettings(
                share=world.rng.choice([0.0, 0.3, 1.0]), delay_s_min=0.001, puts_min=3, kept_puts=0
            ),
        )

    async def prepare(self) -> None:
        """See `NodeWal`."""

    def opener(self, life: Life) -> OpenWal:
        """See `NodeWal`."""

        async def open_wal(owner: WalOwner) -> WriteAheadLog:
            store = owner.store
            if self._other is not None:
                store = self._world.store_of(life.name, self._other)
            return ObjectWal(store, owner, self._settings, are_shared=self._other is None)

        return open_wal

    async def take(self, life: Life, owner: WalOwner) -> WriteAheadLog | None:
        """See `NodeWal`."""
        return None if self._other is None else await self.opener(life)(owner)

    async def wrong_log(self, rng: random.Random) -> NodeWal | None:
        """See `NodeWal`."""
        if self._other is None:
            return None
        if self._snapshot is not None and rng.random() < 0.8:
            return BucketWal(self._world, self._snapshot.copy())
        return BucketWal(self._world, self._other.copy(empty=True))

    def note_dead(self, rng: random.Random) -> None:
        """See `NodeWal`."""
        if self._other is not None and rng.random() < (0.5 if self._snapshot is None else 0.1):
            self._snapshot = self._other.copy()

    def break_soon(self) -> None:
        """See `NodeWal`: there is nothing of its own to break."""

    def slow_down(self) -> None:
        """See `NodeWal`."""

    def hang(self) -> None:
        """See `NodeWal`."""

    def lose_power(self) -> None:
        """See `NodeWal`."""


WALS: dict[str, Callable[[WalWorld], NodeWal]] = {
    "block": DiskWal,
    "memory": ProcessWal,
    "object": BucketWal,
    "object-elsewhere": lambda world: BucketWal(world, world.other_bucket),
}
